// A safetensors file. What is taken must fill the file: each tensor's bytes are read.
#include "cistron/io/safetensors.h"

#include <numeric>

#include "tests/fuzz/support.h"

using namespace cistron;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  const auto path = folder.write("a.safetensors", fuzz::text_of(data, size));
  fuzz::accepts(ErrorKind::kBadData, [&] {
    const io::SafetensorsFile file(path);
    size_t bytes = 0;
    for (const auto& [name, view] : file.tensors()) {
      bytes += view.bytes.size();
      CISTRON_CHECK(file.at(name).spec == view.spec && std::ssize(view.bytes) == io::safetensors_bytes(view.spec), "{}", name);
      std::accumulate(view.bytes.begin(), view.bytes.end(), 0, [](int sum, std::byte b) { return sum ^ static_cast<int>(b); });
    }
    CISTRON_CHECK(bytes <= size, "{} bytes of {}", bytes, size);
  });
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

namespace {

// Where the tensors that a header names end; small, or it is not asked for.
size_t data_size(const std::string& header) {
  const auto json = nlohmann::json::parse(header, nullptr, false);
  size_t end = 0;
  if (!json.is_object()) return 0;
  for (const auto& entry : json) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    for (const auto& offset : entry["data_offsets"])
      if (offset.is_number_unsigned() && offset.get<uint64_t>() < 1024) end = std::max(end, offset.get<size_t>());
  }
  return end;
}

}  // namespace

// The header as JSON, its length mended, and mostly as many bytes behind it as it wants.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed);
  if (size < 8 || mutator.below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  length = std::min<uint64_t>(length, size - 8);
  const std::string_view text = fuzz::text_of(data, size);
  const std::string header = mutator.changed(text.substr(8, length));
  std::string rest(text.substr(8 + length));
  if (mutator.below(4) != 0) rest.resize(data_size(header));
  length = header.size();
  return fuzz::put(std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + rest, data, max_size);
}
#endif
