#include "cistron/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

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
  const auto check = [&](const io::SafetensorsFile& file, const std::string& name) {
    const auto& [spec, bytes] = file.at(name);
    if (spec.dtype != "F32" || std::ssize(bytes) != piece.count * int64_t{sizeof(float)})
      refuse_checkpoint(
          fmt::format("'{}' is {} of {} bytes instead of {} numbers in F32", name, spec.dtype, bytes.size(), piece.count),
          file.path());
  };
  check(*piece.values, slice.parameter);
  for (const char* suffix : {".m", ".v"})
    if (piece.moments != nullptr) check(*piece.moments, slice.parameter + suffix);
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

void Checkpoint::read(const std::string& parameter, const std::string& suffix, int64_t first, std::span<float> out) const {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) refuse_checkpoint(fmt::format("parameter '{}' is missing", parameter), directory_);
  const int64_t end = first + std::ssize(out);
  if (first < 0 || end > found->second.shape.numel())
    refuse_checkpoint(fmt::format("'{}' has {} values, not {}", parameter, found->second.shape.numel(), end), directory_);
  for (const Piece& piece : found->second.pieces) {
    const int64_t begin = std::max(first, piece.begin), count = std::min(end, piece.begin + piece.count) - begin;
    if (count <= 0) continue;
    const auto* values =
        reinterpret_cast<const float*>((suffix.empty() ? piece.values : piece.moments)->at(parameter + suffix).bytes.data());
    std::memcpy(out.data() + (begin - first), values + (begin - piece.begin), static_cast<size_t>(count) * sizeof(float));
  }
}

void Checkpoint::fill(Context& ctx, const std::string& parameter, const std::string& suffix, int64_t first,
                      const Tensor& tensor) const {
  ops::write_pieces(ctx, tensor, [&](int64_t begin, std::span<std::byte> piece) {
    const std::span out(reinterpret_cast<float*>(piece.data()), piece.size() / sizeof(float));
    read(parameter, suffix, first + begin / int64_t{sizeof(float)}, out);
  });
}

void Checkpoint::load(Context& ctx, nn::LocalParameters& parameters) const {
  for (const auto& entry : parameters.entries()) {
    const auto& [name, shape] = std::tie(entry.parameter->name, entry.parameter->shape);
    const auto found = parameters_.find(name);
    if (found != parameters_.end() && found->second.shape != shape)
      refuse_checkpoint(fmt::format("'{}' is {}, wanted {}", name, to_string(found->second.shape), to_string(shape)), directory_);
    const int64_t first = entry.first_row() * nn::row_width(shape);
    fill(ctx, name, "", first, entry.master);
    if (!has_optimizer_ || !entry.m.defined()) continue;
    fill(ctx, name, ".m", first, entry.m);
    fill(ctx, name, ".v", first, entry.v);
  }
  if (parameters_.size() != parameters.entries().size())
    refuse_checkpoint(fmt::format("{} tensors for {} parameters", parameters_.size(), parameters.entries().size()), directory_);
}

}  // namespace cistron::train
