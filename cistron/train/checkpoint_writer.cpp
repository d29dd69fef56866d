// How ranks write a checkpoint together: the first makes the directory, each writes its part into it, the first adds the manifest
// and commits. Nobody goes on before all are done.
#include <nlohmann/json.hpp>
#include <optional>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/together.h"
#include "cistron/io/atomic_file.h"
#include "cistron/ops/copy.h"
#include "cistron/train/checkpoint.h"

namespace cistron::train {

namespace {

namespace fs = std::filesystem;

struct Named {
  std::string name;
  Tensor tensor;
};

// A whole parameter has its own shape in the file, so that a checkpoint of one rank is plain safetensors.
Named named(const ParameterSlice& slice, const char* suffix, const Tensor& tensor) {
  const bool own_shape = slice.is_whole() && tensor.numel() == slice.shape.numel();  // scales are fewer
  return {slice.name + suffix, own_shape ? tensor.reshape(slice.shape) : tensor};
}

io::TensorSpec spec_of(const Named& item) {
  io::TensorSpec spec{.name = item.name, .dtype = format_word(item.tensor.dtype())};
  for (int i = 0; i < item.tensor.shape().rank(); ++i) spec.shape.push_back(item.tensor.dim(i));
  return spec;
}

void write_tensors(Context& ctx, const fs::path& path, const std::vector<Named>& tensors) {
  std::vector<io::TensorSpec> specs;
  for (const Named& item : tensors) specs.push_back(spec_of(item));
  io::SafetensorsWriter writer(path, specs);
  for (const Named& item : tensors)
    ops::read_pieces(ctx, item.tensor, [&](std::span<const std::byte> piece) { writer.write(item.name, piece); });
  writer.commit();
}

std::string file_of(const char* kind, const dist::Communicator& world) {
  return world.size() == 1 ? fmt::format("{}.safetensors", kind) : fmt::format("{}-{:05}.safetensors", kind, world.rank());
}

// Gives what the manifest says of it.
Manifest write_part(Context& ctx, const fs::path& directory, const std::vector<ParameterSlice>& slices,
                    const dist::Communicator& world) {
  const std::string values = file_of("parameters", world), moments = file_of("optimizer", world);
  std::vector<Named> masters, optimizer;
  Manifest part;
  for (const ParameterSlice& slice : slices) {
    const bool has_moments = slice.m.defined();
    masters.push_back(named(slice, "", slice.master));
    if (has_moments) optimizer.push_back(named(slice, ".m", slice.m));
    if (has_moments) optimizer.push_back(named(slice, ".v", slice.v));
    if (slice.m_scale.defined()) optimizer.push_back(named(slice, ".m.scale", slice.m_scale));
    if (slice.v_scale.defined()) optimizer.push_back(named(slice, ".v.scale", slice.v_scale));
    part.slices.push_back({.parameter = slice.name,
                           .shape = slice.shape,
                           .begin = slice.begin,
                           .count = slice.count,
                           .values = values,
                           .moments = has_moments ? moments : ""});
  }
  write_tensors(ctx, directory / values, masters);
  part.files.push_back(describe_file(directory / values));
  if (optimizer.empty()) return part;
  write_tensors(ctx, directory / moments, optimizer);
  part.files.push_back(describe_file(directory / moments));
  return part;
}

nlohmann::json describe_state(const CheckpointInfo& info) {
  const auto& s = info.state;
  return {{"step", s.step},
          {"tokens", s.tokens},
          {"seed", info.config.train.seed},
          {"store_fingerprint", hex(s.store_fingerprint)},
          {"validation_due", s.validation_due},
          {"tokenizer", info.tokenizer},
          {"learning_rate", s.step_state.learning_rate}};
}

void write_description(const fs::path& directory, const CheckpointInfo& info, Manifest manifest) {
  io::write_file(directory / "config.toml", to_toml(info.config));
  io::write_file(directory / "state.json", describe_state(info).dump(1) + "\n");
  for (const char* name : {"config.toml", "state.json"}) manifest.files.push_back(describe_file(directory / name));
  write_manifest(directory, manifest);
}

}  // namespace

void save_checkpoint(Context& ctx, const fs::path& path, const CheckpointInfo& info, const std::vector<ParameterSlice>& slices,
                     bool replace, dist::Communicator& world) {
  const bool first = world.rank() == 0;
  std::optional<io::AtomicDirectory> directory;
  std::string partial;
  dist::together(world, [&] {
    if (!first) return;
    directory.emplace(path, replace);
    partial = directory->partial().string();
  });
  partial = dist::gather_texts(world, partial)[0];
  const auto remove = [&] { directory.reset(); };
  Manifest part;
  dist::together(world, [&] { part = write_part(ctx, partial, slices, world); }, remove);
  const auto parts = dist::gather_texts(world, to_text(part));
  const auto commit = [&] {
    if (!first) return;
    Manifest whole;
    for (const std::string& text : parts) whole.add(from_text(text, partial));
    write_description(partial, info, std::move(whole));
    directory->commit();
  };
  dist::together(world, commit, remove);
}

}  // namespace cistron::train
