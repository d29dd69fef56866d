#include "cistron/train/checkpoint.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/checksum.h"
#include "cistron/io/json.h"
#include "cistron/io/mapped_file.h"
#include "cistron/ops/copy.h"

namespace cistron::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kParameters = "parameters.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kBadData, what, where.string(), "take another checkpoint; this one cannot be trusted");
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

io::TensorSpec spec_of(const std::string& name, const Tensor& tensor) {
  io::TensorSpec spec{.name = name, .dtype = "F32"};
  for (int i = 0; i < tensor.shape().rank(); ++i) spec.shape.push_back(tensor.dim(i));
  return spec;
}

struct Named {
  std::string name;
  Tensor tensor;
};

void write_tensors(Context& ctx, const fs::path& path, const std::vector<Named>& tensors) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back(spec_of(name, tensor));
  io::SafetensorsWriter writer(path, specs);
  for (const auto& item : tensors)
    ops::read_pieces(ctx, item.tensor, [&](std::span<const std::byte> piece) { writer.write(item.name, piece); });
  writer.commit();
}

json describe_state(const CheckpointInfo& info) {
  const auto& s = info.state;
  return {{"step", s.step},
          {"tokens", s.tokens},
          {"seed", info.config.train.seed},
          {"store_fingerprint", hex(s.store_fingerprint)},
          {"validation_due", s.validation_due},
          {"tokenizer", info.tokenizer},
          {"learning_rate", s.step_state.learning_rate}};
}

uint64_t from_hex(const std::string& text, const fs::path& file) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) refuse("a broken fingerprint", file);
  return value;
}

CheckpointInfo read_info(const fs::path& directory, const std::string& state_text, const std::string& config_text) {
  const json state = io::parse_json(state_text, (directory / "state.json").string());
  CheckpointInfo info;
  info.config = parse_config(config_text, (directory / "config.toml").string());
  info.tokenizer = state.at("tokenizer").get<std::string>();
  info.state = {.step = state.at("step").get<int64_t>(),
                .tokens = state.at("tokens").get<int64_t>(),
                .store_fingerprint = from_hex(state.at("store_fingerprint").get<std::string>(), directory / "state.json"),
                .validation_due = state.at("validation_due").get<bool>()};
  info.state.step_state.step = info.state.step;
  info.state.step_state.learning_rate = state.at("learning_rate").get<float>();
  return info;
}

json describe_slices(const nn::LocalParameters& parameters) {
  json slices = json::array();
  for (const auto& entry : parameters.entries()) {
    const Parameter& p = *entry.parameter;
    json shape = json::array();
    for (int i = 0; i < p.shape.rank(); ++i) shape.push_back(p.shape[i]);
    slices.push_back(
        {{"name", p.name}, {"shape", shape}, {"begin", p.begin}, {"count", entry.master.dim(0)}, {"file", kParameters}});
  }
  return slices;
}

json describe_files(const fs::path& directory) {
  json files = json::object();
  for (const auto& file : fs::directory_iterator(directory)) {
    const io::MappedFile mapped(file.path());
    files[file.path().filename().string()] = {{"bytes", mapped.bytes().size()}, {"xxh64", hex(io::xxh64(mapped.bytes()))}};
  }
  return files;
}

std::string seal(json manifest) {
  const std::string body = manifest.dump();
  manifest["xxh64"] = hex(io::xxh64(std::as_bytes(std::span(body))));
  return manifest.dump(1) + "\n";
}

std::string read_text(const fs::path& path) {
  const io::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

json read_manifest(const fs::path& path) {
  json manifest;
  if (!fs::is_regular_file(path)) refuse("the checkpoint has no manifest", path);
  try {
    manifest = io::parse_json(read_text(path), path.string());
    if (!manifest.is_object()) refuse("a broken manifest", path);
    if (manifest.at("format") != "cistron-checkpoint") refuse("not the manifest of a checkpoint", path);
    if (manifest.at("version") != kVersion)
      refuse(fmt::format("a checkpoint of version {}, this program reads {}", manifest.at("version").dump(), kVersion), path);
    json body = manifest;
    body.erase("xxh64");
    const std::string text = body.dump();
    if (manifest.at("xxh64") != hex(io::xxh64(std::as_bytes(std::span(text))))) refuse("a wrong checksum", path);
  } catch (const json::exception& error) {
    refuse(fmt::format("a broken manifest ({})", error.what()), path);
  }
  return manifest;
}

void verify_files(const fs::path& directory, const json& files) {
  for (const auto& [name, expected] : files.items()) {
    const fs::path path = directory / name;
    if (!fs::is_regular_file(path)) refuse("a part is missing", path);
    const io::MappedFile file(path);
    if (file.bytes().size() != expected.at("bytes").get<size_t>())
      refuse(fmt::format("{} bytes instead of {}", file.bytes().size(), expected.at("bytes").dump()), path);
    if (hex(io::xxh64(file.bytes())) != expected.at("xxh64")) refuse("a wrong checksum", path);
  }
  for (const auto& file : fs::directory_iterator(directory)) {
    const std::string name = file.path().filename().string();
    if (name != kManifest && !files.contains(name)) refuse("a file that does not belong here", file.path());
  }
}

void fill(Context& ctx, const io::SafetensorsFile& file, const std::string& name, const Tensor& tensor) {
  if (!file.contains(name)) refuse(fmt::format("parameter '{}' is missing", name), file.path());
  const auto& view = file.at(name);
  const auto wanted = spec_of(name, tensor);
  if (view.spec != wanted)
    refuse(fmt::format("'{}' is {} [{}], wanted F32 [{}]", name, view.spec.dtype, fmt::join(view.spec.shape, ", "),
                       fmt::join(wanted.shape, ", ")),
           file.path());
  auto* bytes = const_cast<std::byte*>(view.bytes.data());  // a view has no constant form
  ops::copy(ctx, {.x = Tensor::view(bytes, tensor.shape(), DType::kF32), .out = tensor});
}

}  // namespace

void save_checkpoint(Context& ctx, const fs::path& path, const CheckpointInfo& info, const nn::LocalParameters& parameters,
                     bool replace) {
  io::AtomicDirectory directory(path, replace);
  const fs::path& partial = directory.partial();
  std::vector<Named> masters, moments;
  for (const auto& entry : parameters.entries()) {
    masters.push_back({entry.parameter->name, entry.master});
    if (!entry.m.defined()) continue;
    moments.push_back({entry.parameter->name + ".m", entry.m});
    moments.push_back({entry.parameter->name + ".v", entry.v});
  }
  write_tensors(ctx, partial / kParameters, masters);
  if (!moments.empty()) write_tensors(ctx, partial / kOptimizer, moments);
  io::write_file(partial / "config.toml", to_toml(info.config));
  io::write_file(partial / "state.json", describe_state(info).dump(1) + "\n");
  const json manifest{{"format", "cistron-checkpoint"},
                      {"version", kVersion},
                      {"files", describe_files(partial)},
                      {"slices", describe_slices(parameters)}};
  io::write_file(partial / kManifest, seal(manifest));
  directory.commit();
}

Checkpoint::Checkpoint(const fs::path& directory) : directory_(directory) {
  const json manifest = read_manifest(directory / kManifest);
  try {
    verify_files(directory, manifest.at("files"));
    info_ = read_info(directory, read_text(directory / "state.json"), read_text(directory / "config.toml"));
    for (const auto& slice : manifest.at("slices"))
      if (slice.at("begin") != 0 || slice.at("count") != slice.at("shape").at(0))
        refuse(fmt::format("{} is a slice: this build reads whole parameters", slice.at("name").dump()), directory / kManifest);
  } catch (const json::exception& error) {
    refuse(fmt::format("a broken manifest or state ({})", error.what()), directory);
  }
  parameters_ = std::make_unique<io::SafetensorsFile>(directory / kParameters);
  if (manifest.at("files").contains(kOptimizer)) optimizer_ = std::make_unique<io::SafetensorsFile>(directory / kOptimizer);
}

std::span<const float> Checkpoint::values(const std::string& parameter) const {
  const auto& [spec, bytes] = parameters_->at(parameter);
  if (spec.dtype != "F32") refuse(fmt::format("'{}' is of {} instead of F32", parameter, spec.dtype), parameters_->path());
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

void Checkpoint::load(Context& ctx, nn::LocalParameters& parameters) const {
  for (auto& entry : parameters.entries()) {
    const std::string& name = entry.parameter->name;
    fill(ctx, *parameters_, name, entry.master);
    if (optimizer_ == nullptr || !entry.m.defined()) continue;
    fill(ctx, *optimizer_, name + ".m", entry.m);
    fill(ctx, *optimizer_, name + ".v", entry.v);
  }
  if (parameters_->tensors().size() != parameters.entries().size())
    refuse(fmt::format("{} tensors for {} parameters", parameters_->tensors().size(), parameters.entries().size()),
           parameters_->path());
}

}  // namespace cistron::train
