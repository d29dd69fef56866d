// parity-driver MODEL BATCHES OUT STEPS LEARNING_RATE PRECISION DEVICE: what Cistron makes of a model, for parity.py.
//   MODEL    a Hugging Face directory
//   BATCHES  safetensors: tokens.I and cu_seqlens.I, i32, for I = 0, 1, ...; every batch has the same number of tokens;
//            step i uses batch i mod their number
//   OUT      (made) results.safetensors with logits [T, V] of batch 0 (on the CPU alone), and loss, aux_loss, grad_norm
//            [STEPS]; and as Hugging Face directories: imported (MODEL again, before any step), grads (of step 1), trained
//            (after the last step)
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cistron/core/error.h"
#include "cistron/data/pack.h"
#include "cistron/io/safetensors.h"
#include "cistron/model/hugging_face.h"
#include "cistron/ops/copy.h"
#include "cistron/train/engine.h"

namespace {

using namespace cistron;
namespace fs = std::filesystem;

struct Arguments {
  fs::path model, batches, out;
  int64_t steps = 0;
  double learning_rate = 0.0;
  Precision precision = Precision::kF32;
  Device device;
};

std::vector<int32_t> read_i32(const io::SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.at(name).bytes;
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

data::PackedBatch read_batch(const io::SafetensorsFile& file, size_t index) {
  const auto tokens = read_i32(file, fmt::format("tokens.{}", index)),
             starts = read_i32(file, fmt::format("cu_seqlens.{}", index));
  std::vector<std::vector<int32_t>> sequences;
  for (size_t s = 0; s + 1 < starts.size(); ++s)
    sequences.emplace_back(tokens.begin() + starts[s], tokens.begin() + starts[s + 1]);
  return data::pack(sequences);
}

void fill(Context& ctx, nn::LocalParameters& parameters, const fs::path& model, const model::ModelConfig& config) {
  model::import_hugging_face(model, config, [&](const std::string& name, std::span<const float> values) {
    ops::write_pieces(ctx, parameters.find(name).master, [&](int64_t begin, std::span<std::byte> piece) {
      std::ranges::copy(std::as_bytes(values).subspan(static_cast<size_t>(begin), piece.size()), piece.begin());
    });
  });
}

std::vector<float> on_host(Context& ctx, const Tensor& tensor) {
  std::vector<float> values;
  ops::read_pieces(ctx, tensor, [&](std::span<const std::byte> piece) {
    const auto* first = reinterpret_cast<const float*>(piece.data());
    values.insert(values.end(), first, first + piece.size() / sizeof(float));
  });
  return values;
}

/// One of a parameter's arrays, for all parameters, as a Hugging Face directory.
void write(train::Engine& engine, Tensor nn::LocalParameters::Entry::* array, const fs::path& directory,
           const model::ModelConfig& config) {
  fs::create_directories(directory);
  std::map<std::string, std::vector<float>> values;
  for (const auto& entry : engine.parameters().entries()) values[entry.parameter->name] = on_host(engine.context(), entry.*array);
  model::export_hugging_face(directory, config, {}, [&](const std::string& name, int64_t first, std::span<float> out) {
    std::ranges::copy(std::span(values.at(name)).subspan(static_cast<size_t>(first), out.size()), out.begin());
  });
}

std::vector<float> logits(const Arguments& arguments, const model::ModelConfig& config, const nn::Batch& batch,
                          ThreadPool& pool) {
  const auto arena = [](const char* name) { return Arena::growing(name, Device{}, host_memory()); };
  model::Decoder decoder(config);
  nn::LocalParameters parameters(decoder.parameters(), arguments.precision, {.parameters = arena("parameters")});
  Context ctx{.arena = arena("activations"), .pool = &pool, .parameters = &parameters, .precision = arguments.precision};
  fill(ctx, parameters, arguments.model, config);
  parameters.refresh_working(ctx);
  const Tensor all = decoder.logits(ctx, batch);
  const auto values = all.span<float>();
  return {values.begin(), values.end()};
}

void write_results(const fs::path& path, const std::map<std::string, std::vector<float>>& results) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, values] : results) specs.push_back({name, "F32", {static_cast<int64_t>(values.size())}});
  io::SafetensorsWriter writer(path, specs);
  for (const auto& [name, values] : results) writer.write(name, std::as_bytes(std::span(values)));
  writer.commit();
}

void run(const Arguments& arguments) {
  const model::ModelConfig config = model::read_hugging_face_config(arguments.model);
  const io::SafetensorsFile file(arguments.batches);
  std::vector<data::PackedBatch> packed;
  for (size_t i = 0; file.contains(fmt::format("tokens.{}", i)); ++i) packed.push_back(read_batch(file, i));

  ThreadPool pool;
  std::map<std::string, std::vector<float>> results;
  if (!arguments.device.is_cuda()) results["logits"] = logits(arguments, config, nn::view_of(packed.at(0)), pool);

  const train::EngineOptions options{.model = config,
                                     .device = arguments.device,
                                     .precision = arguments.precision,
                                     .micro_batch_tokens = packed.at(0).num_tokens(),
                                     .weight_decay = 0.1,
                                     .clip = 1.0};
  train::Engine engine(options, train::Engine::plan(options), &pool);
  engine.initialise(0);
  fill(engine.context(), engine.parameters(), arguments.model, config);
  engine.refresh_working();
  write(engine, &nn::LocalParameters::Entry::master, arguments.out / "imported", config);
  for (int64_t i = 0; i < arguments.steps; ++i) {
    const auto& batch = packed[static_cast<size_t>(i) % packed.size()];
    const nn::Batch view = nn::view_of(batch);
    const auto step = engine.step(std::span(&view, 1), static_cast<double>(batch.label_count), arguments.learning_rate);
    results["loss"].push_back(static_cast<float>(step.loss));
    results["aux_loss"].push_back(static_cast<float>(step.router.aux_loss));
    results["grad_norm"].push_back(static_cast<float>(step.grad_norm));
    if (i == 0) write(engine, &nn::LocalParameters::Entry::grad, arguments.out / "grads", config);
  }
  write(engine, &nn::LocalParameters::Entry::master, arguments.out / "trained", config);
  write_results(arguments.out / "results.safetensors", results);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 8) throw Error(ErrorKind::kUsage, "parity-driver", "arguments", "see the head of driver.cpp");
    run({.model = argv[1],
         .batches = argv[2],
         .out = argv[3],
         .steps = std::stoll(argv[4]),
         .learning_rate = std::stod(argv[5]),
         .precision = std::string_view(argv[6]) == "bf16" ? Precision::kBF16 : Precision::kF32,
         .device = {std::string_view(argv[7]) == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu}});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "cistron: error: {}\n", error.what());
    return 1;
  }
}
