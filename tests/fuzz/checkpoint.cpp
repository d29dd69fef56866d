// A checkpoint's five files: manifest.json, state.json, config.toml, a.safetensors, b.safetensors. Sizes and checksums are made
// right unless the manifest begins with '#', so that what they guard is reached. Of what opens every parameter is read.
#include "cistron/train/checkpoint.h"

#include <nlohmann/json.hpp>

#include "cistron/io/checksum.h"
#include "cistron/nn/local_parameters.h"
#include "tests/fuzz/support.h"

using namespace cistron;

namespace {

using nlohmann::json;

constexpr const char* kFiles[] = {"state.json", "config.toml", "a.safetensors", "b.safetensors"};

uint64_t checksum(const std::string& text) { return io::xxh64(std::as_bytes(std::span(text))); }

void seal(std::vector<std::string>& parts) {
  json manifest = json::parse(parts[0], nullptr, false);
  if (!manifest.is_object()) return;
  if (manifest.contains("files") && manifest["files"].is_object())
    for (size_t i = 0; i < std::size(kFiles); ++i)
      if (manifest["files"].contains(kFiles[i]))
        manifest["files"][kFiles[i]] = {{"bytes", parts[i + 1].size()}, {"xxh64", train::hex(checksum(parts[i + 1]))}};
  manifest.erase("xxh64");
  manifest["xxh64"] = train::hex(checksum(manifest.dump()));
  parts[0] = manifest.dump();
}

void read_all(const train::Checkpoint& checkpoint, const std::filesystem::path& folder) {
  for (const auto& slice : train::read_manifest(folder).slices) {
    CISTRON_CHECK(slice.shape.numel() < 1 << 20, "{} values from so small files", slice.shape.numel());
    std::vector<float> values(static_cast<size_t>(slice.shape.numel()));
    checkpoint.read(slice.parameter, 0, values);
    const auto all = nn::num_rows(slice.shape) * nn::row_width(slice.shape);
    CISTRON_CHECK(all == slice.shape.numel(), "{} of {} values", all, slice.shape.numel());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  auto parts = fuzz::parts_of(fuzz::text_of(data, size), 1 + std::size(kFiles));
  const bool as_it_is = parts[0].starts_with('#');
  if (as_it_is)
    parts[0].erase(0, 1);
  else
    seal(parts);
  folder.write("manifest.json", parts[0]);
  for (size_t i = 0; i < std::size(kFiles); ++i) folder.write(kFiles[i], parts[i + 1]);
  fuzz::accepts(ErrorKind::kBadData, [&] {
    fuzz::accepts(ErrorKind::kUsage, [&] {  // what its config.toml says
      const train::Checkpoint checkpoint(folder.path());
      read_all(checkpoint, folder.path());
    });
  });
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed);
  if (mutator.below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  auto parts = fuzz::parts_of(fuzz::text_of(data, size), 1 + std::size(kFiles));
  const size_t one = mutator.below(10);
  if (one < 6) parts[0] = mutator.changed(parts[0]);
  if (one == 6) parts[1] = mutator.changed(parts[1]);
  if (one > 6) parts[one - 5] = fuzz::changed_bytes(parts[one - 5]);
  return fuzz::put(fuzz::joined(parts), data, max_size);
}
#endif
