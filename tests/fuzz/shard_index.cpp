// model.safetensors.index.json beside two whole shards, with a.F32[2], b.F32[1] and c.U8[3]; and config-less folders of them.
#include "cistron/io/safetensors.h"
#include "tests/fuzz/support.h"

using namespace cistron;

namespace {

std::string shard(std::string header, size_t bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + std::string(bytes, 'x');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  static const bool made = [] {
    folder.write("1.safetensors", shard(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                        R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                                        12));
    folder.write("2.safetensors", shard(R"({"c":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
    return true;
  }();
  folder.write("model.safetensors.index.json", fuzz::text_of(data, size));
  fuzz::accepts(ErrorKind::kBadData, [&] {
    const io::SafetensorsModel model(folder.path());
    CISTRON_CHECK(made && model.tensors().size() <= 3, "{} tensors", model.tensors().size());
    for (const auto& [name, view] : model.tensors()) CISTRON_CHECK(model.at(name).bytes.size() == view->bytes.size(), "{}", name);
  });
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed);
  if (mutator.below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  return fuzz::put(mutator.changed(fuzz::text_of(data, size)), data, max_size);
}
#endif
