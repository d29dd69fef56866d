// The batches that `cistron train CONFIG` sees, for other programs that are to train on the same: one byte a token, 128 more at
// the first of a sequence. FOLDER/train.u8 has train.batch_tokens bytes a step; FOLDER/valid.u8 each held-out window once. Run:
// dump_batches CONFIG FOLDER [section.key=value]...
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/data/loader.h"
#include "cistron/train/config.h"

namespace {

using cistron::data::PackedBatch;

constexpr int32_t kFirst = 128;

void write(std::ofstream& stream, const PackedBatch& batch) {
  std::vector<char> bytes(batch.tokens.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    CISTRON_CHECK(batch.tokens[i] < kFirst, "token {} does not fit", batch.tokens[i]);
    bytes[i] = static_cast<char>(batch.tokens[i] + (batch.positions[i] == 0 ? kFirst : 0));
  }
  stream.write(bytes.data(), std::ssize(bytes));
  CISTRON_CHECK(stream.good(), "the batches cannot be written");
}

void dump(const std::filesystem::path& file, const std::filesystem::path& folder, const std::vector<std::string>& overrides) {
  cistron::train::RunConfig config = cistron::train::load_config(file, overrides);
  cistron::train::resolve(config, /*fast_bf16=*/true);
  const auto store = cistron::data::Store::open(config.data.store);
  const auto open = [&](const char* name) { return std::ofstream(folder / name, std::ios::binary); };
  const cistron::data::Loader loader(store.train(), {.context = config.data.context,
                                                     .batch_tokens = config.train.batch_tokens,
                                                     .seed = static_cast<uint64_t>(config.train.seed)});
  std::ofstream train = open("train.u8"), valid = open("valid.u8");
  for (int64_t step = 0; step < config.total_steps(); ++step) write(train, loader.batch(step));
  const cistron::data::EvalBatches held_out(store.valid(), config.data.context, config.train.batch_tokens);
  for (int64_t i = 0; i < held_out.size(); ++i) write(valid, held_out.batch(i));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: dump_batches CONFIG FOLDER [section.key=value]...\n");
    return 2;
  }
  try {
    dump(argv[1], argv[2], {argv + 3, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "dump_batches: {}\n", error.what());
    return 1;
  }
}
