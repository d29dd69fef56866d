// A token store's five files: manifest.json, then of train and valid tokens.bin and records.bin. Lengths and checksums are made
// right unless the manifest begins with '#', so that what they guard is reached. What opens is read to its last token.
#include "cistron/data/store.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "cistron/data/store_format.h"
#include "cistron/io/checksum.h"
#include "tests/fuzz/support.h"

using namespace cistron;

namespace {

using nlohmann::json;

constexpr const char* kFiles[] = {"train/tokens.bin", "train/records.bin", "valid/tokens.bin", "valid/records.bin"};

// A file's header made to fit what is behind it; gives what the manifest should say.
json seal(std::string& file) {
  data::StoreHeader header;
  if (file.size() < sizeof header) return nullptr;
  std::memcpy(&header, file.data(), sizeof header);
  header.payload_bytes = file.size() - sizeof header;
  header.checksum = io::xxh64(std::as_bytes(std::span(file)).subspan(sizeof header));
  std::memcpy(file.data(), &header, sizeof header);
  return {{"count", header.count}, {"bytes", header.payload_bytes}, {"checksum", header.checksum}};
}

void seal(std::vector<std::string>& parts) {
  json manifest = json::parse(parts[0], nullptr, false);
  for (size_t i = 0; i < std::size(kFiles); ++i) {
    const json says = seal(parts[i + 1]);
    const json::json_pointer place(i < 2 ? "/splits/train" : "/splits/valid");
    if (manifest.is_object() && manifest.contains(place) && manifest[place].is_object())
      manifest[place][i % 2 == 0 ? "tokens" : "records"] = says;
  }
  if (!manifest.is_object()) return;
  manifest.erase("checksum");
  manifest["checksum"] = io::xxh64(manifest.dump());
  parts[0] = manifest.dump();
}

void read_all(const data::Store& store, const data::StoreSplit& split) {
  std::vector<int32_t> tokens;
  int64_t count = 0;
  size_t bytes = 0;
  for (int64_t record = 0; record < split.num_records(); ++record) {
    tokens.resize(static_cast<size_t>(split.length(record)));
    split.copy_tokens(record, 0, tokens);
    for (const int32_t token : tokens)
      CISTRON_CHECK(token >= 0 && token < store.tokenizer().vocab_size(), "token {} of record {}", token, record);
    for (const char c : split.id(record)) bytes += c != '\0' ? 1 : 0;
    count += split.length(record);
  }
  CISTRON_CHECK(count == split.num_tokens() && bytes < (1 << 30), "{} tokens of {}", count, split.num_tokens());
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
    const data::Store store = data::Store::open(folder.path());
    read_all(store, store.train());
    read_all(store, store.valid());
  });
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed);
  if (mutator.below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  auto parts = fuzz::parts_of(fuzz::text_of(data, size), 1 + std::size(kFiles));
  const size_t one = mutator.below(2 * parts.size());
  if (one >= parts.size())
    parts[0] = mutator.changed(parts[0]);
  else
    parts[one] = fuzz::changed_bytes(parts[one]);
  return fuzz::put(fuzz::joined(parts), data, max_size);
}
#endif
