#include "cistron/train/checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/io/json.h"
#include "cistron/ops/copy.h"

namespace cistron::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

uint64_t from_hex(const std::string& text, const fs::path& file) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) refuse_checkpoint("a broken fingerprint", file);
  return value;
}

CheckpointInfo read_info(const fs::path& directory) {
  const fs::path state_file = directory / "state.json", config_file = directory / "config.toml";
  CheckpointInfo info;
  try {
    const json state = io::parse_json(read_text(state_file), state_file.string());
    info.config = parse_config(read_text(config_file), config_file.string());
    info.tokenizer = state.at("tokenizer").get<std::string>();
    info.state = {.step = io::json_integer(state.at("step"), state_file.string()),
                  .tokens = io::json_integer(state.at("tokens"), state_file.string()),
                  .store_fingerprint = from_hex(state.at("store_fingerprint").get<std::string>(), state_file),
                  .validation_due = state.at("validation_due").get<bool>()};
    if (info.state.step < 0 || info.state.tokens < 0) refuse_checkpoint("a broken state (less than nothing was done)", state_file);
    info.state.step_state.step = info.state.step;
    info.state.step_state.learning_rate = state.at("learning_rate").get<float>();
  } catch (const json::exception& error) {
    refuse_checkpoint(fmt::format("a broken state ({})", error.what()), state_file);
  }
  return info;
}

// That `name` is so many numbers in one of these dtypes.
void check_numbers(const io::SafetensorsFile& file, const std::string& name, std::string_view dtypes, int64_t count) {
  const auto& [spec, bytes] = file.at(name);
  const bool known = dtypes.find(spec.dtype) != std::string_view::npos;
  if (!known || std::ssize(bytes) != count * io::safetensors_element_size(spec.dtype))
    refuse_checkpoint(fmt::format("'{}' is {} of {} bytes instead of {} numbers in {}", name, spec.dtype, bytes.size(), count,
                                  dtypes.substr(0, dtypes.find(' '))),
                      file.path());
}

bool is_codes(const io::SafetensorsFile& file, const std::string& name) { return file.at(name).spec.dtype == "U8"; }

void to_floats(const io::SafetensorsView& view, int64_t first, std::span<float> out) {
  if (view.spec.dtype == "F32") {
    std::memcpy(out.data(), view.bytes.data() + first * int64_t{sizeof(float)}, out.size_bytes());
    return;
  }
  const std::byte* at = view.bytes.data() + first * int64_t{sizeof(bf16)};
  for (float& value : out) {
    bf16 x;
    std::memcpy(&x.bits, at, sizeof(x));
    value = static_cast<float>(x);
    at += sizeof(x);
  }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& directory, int ranks, int rank) : directory_(directory) {
  const Manifest manifest = read_manifest(directory);
  verify_files(directory, manifest, ranks, rank);
  info_ = read_info(directory);
  for (const Manifest::Slice& slice : manifest.slices) add(slice);
  check_complete();
}

const io::SafetensorsFile* Checkpoint::open(const std::string& file) {
  auto& opened = files_[file];
  if (opened == nullptr) opened = std::make_unique<io::SafetensorsFile>(directory_ / file);
  return opened.get();
}

void Checkpoint::add(const Manifest::Slice& slice) {
  Whole& whole = parameters_[slice.parameter];
  if (whole.shape.rank() == 0) whole.shape = slice.shape;
  const int64_t width = nn::row_width(slice.shape), rows = nn::num_rows(slice.shape);
  if (whole.shape != slice.shape || slice.begin < 0 || slice.count < 0 || slice.begin > rows - slice.count)
    refuse_checkpoint(fmt::format("the slices of '{}' do not fit each other", slice.parameter), directory_ / Manifest::kName);
  Piece piece{.begin = slice.begin * width,
              .count = slice.count * width,
              .values = open(slice.values),
              .moments = slice.moments.empty() ? nullptr : open(slice.moments)};
  check_numbers(*piece.values, slice.parameter, "F32 BF16", piece.count);
  for (const char* suffix : {".m", ".v"}) {
    if (piece.moments == nullptr) continue;
    const std::string name = slice.parameter + suffix;
    check_numbers(*piece.moments, name, "F32 BF16 U8", piece.count);
    if (is_codes(*piece.moments, name))
      check_numbers(*piece.moments, name + ".scale", "U8", slice.count * ceil_div(width, ops::kStateBlock));
  }
  has_optimizer_ = has_optimizer_ && piece.moments != nullptr;
  whole.pieces.push_back(piece);
}

void Checkpoint::check_complete() {
  for (auto& [name, whole] : parameters_) {
    std::ranges::sort(whole.pieces, {}, &Piece::begin);
    int64_t next = 0;
    for (const Piece& piece : whole.pieces) {
      if (piece.begin != next)
        refuse_checkpoint(fmt::format("'{}' {} at element {}", name, piece.begin > next ? "has a hole" : "is there twice", next),
                          directory_ / Manifest::kName);
      next += piece.count;
    }
    if (next != whole.shape.numel())
      refuse_checkpoint(fmt::format("'{}' ends at element {}", name, next), directory_ / Manifest::kName);
  }
}

const Checkpoint::Whole& Checkpoint::find(const std::string& parameter) const {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) refuse_checkpoint(fmt::format("parameter '{}' is missing", parameter), directory_);
  return found->second;
}

// Elements [first, first + count) of an array by this name, of `width` elements a row: take(view, where in the view, how far from
// `first`, how many).
template <class Take>
void Checkpoint::for_parts(const Whole& whole, const std::string& name, int64_t width, int64_t first, int64_t count,
                           const Take& take) const {
  const int64_t row = nn::row_width(whole.shape);
  for (const Piece& piece : whole.pieces) {
    const int64_t start = piece.begin / row * width, size = piece.count / row * width;
    const int64_t begin = std::max(first, start), end = std::min(first + count, start + size);
    if (begin >= end) continue;
    const auto& file = piece.values->contains(name) ? *piece.values : *piece.moments;
    take(file.at(name), begin - start, begin - first, end - begin);
  }
}

void Checkpoint::read(const std::string& parameter, const std::string& suffix, int64_t first, std::span<float> out) const {
  const Whole& whole = find(parameter);
  const int64_t end = first + std::ssize(out);
  if (first < 0 || end > whole.shape.numel())
    refuse_checkpoint(fmt::format("'{}' has {} values, not {}", parameter, whole.shape.numel(), end), directory_);
  for_parts(whole, parameter + suffix, nn::row_width(whole.shape), first, std::ssize(out),
            [&](const io::SafetensorsView& view, int64_t from, int64_t to, int64_t count) {
              to_floats(view, from, out.subspan(static_cast<size_t>(to), static_cast<size_t>(count)));
            });
}

void Checkpoint::fill(Context& ctx, const std::string& parameter, const std::string& suffix, int64_t first_row,
                      const Tensor& tensor) const {
  const int64_t first = first_row * nn::row_width(find(parameter).shape);
  ops::write_pieces(ctx, tensor, [&](int64_t begin, std::span<std::byte> piece) {
    const int64_t start = first + begin / size_of(tensor.dtype());
    if (tensor.dtype() == DType::kF32)
      return read(parameter, suffix, start, {reinterpret_cast<float*>(piece.data()), piece.size() / sizeof(float)});
    const std::span out(reinterpret_cast<bf16*>(piece.data()), piece.size() / sizeof(bf16));
    std::array<float, 4096> floats;
    for (size_t i = 0; i < out.size(); i += floats.size()) {
      const auto some = std::span(floats).first(std::min(floats.size(), out.size() - i));
      read(parameter, suffix, start + static_cast<int64_t>(i), some);
      std::ranges::transform(some, out.begin() + static_cast<int64_t>(i), [](float x) { return bf16(x); });
    }
  });
}

// Codes and scales, as they are.
void Checkpoint::fill_bytes(Context& ctx, const std::string& parameter, const std::string& suffix, int64_t first_row,
                            const Tensor& tensor) const {
  const int64_t width = tensor.dim(tensor.shape().rank() - 1);
  ops::write_pieces(ctx, tensor, [&](int64_t begin, std::span<std::byte> piece) {
    for_parts(find(parameter), parameter + suffix, width, first_row * width + begin, std::ssize(piece),
              [&](const io::SafetensorsView& view, int64_t from, int64_t to, int64_t count) {
                std::memcpy(piece.data() + to, view.bytes.data() + from, static_cast<size_t>(count));
              });
  });
}

void Checkpoint::load_moments(Context& ctx, const nn::LocalParameters::Entry& entry) const {
  const std::string& name = entry.parameter->name;
  const bool codes = entry.m.dtype() == DType::kU8;
  for (const Piece& piece : find(name).pieces)
    if (is_codes(*piece.moments, name + ".m") != codes || is_codes(*piece.moments, name + ".v") != codes)
      throw Error(ErrorKind::kUsage, "only one of checkpoint and run has 8-bit moments", directory_.string(),
                  fmt::format("resume with optimizer.state_dtype = \"{}\"", info_.config.optimizer.state_dtype));
  const int64_t first = entry.first_row();
  for (const auto& [suffix, moment, scale] :
       {std::tuple(".m", &entry.m, &entry.m_scale), std::tuple(".v", &entry.v, &entry.v_scale)}) {
    if (!codes) {
      fill(ctx, name, suffix, first, *moment);
      continue;
    }
    fill_bytes(ctx, name, suffix, first, *moment);
    fill_bytes(ctx, name, std::string(suffix) + ".scale", first, *scale);
  }
}

void Checkpoint::load(Context& ctx, nn::LocalParameters& parameters) const {
  for (const auto& entry : parameters.entries()) {
    const auto& [name, shape] = std::tie(entry.parameter->name, entry.parameter->shape);
    const auto found = parameters_.find(name);
    if (found != parameters_.end() && found->second.shape != shape)
      refuse_checkpoint(fmt::format("'{}' is {}, wanted {}", name, to_string(found->second.shape), to_string(shape)), directory_);
    fill(ctx, name, "", entry.first_row(), entry.master);
    if (has_optimizer_ && entry.m.defined()) load_moments(ctx, entry);
  }
  if (parameters_.size() != parameters.entries().size())
    refuse_checkpoint(fmt::format("{} tensors for {} parameters", parameters_.size(), parameters.entries().size()), directory_);
}

}  // namespace cistron::train
