// A Hugging Face folder's config.json and tokenizer_config.json (tokenizer.json is written and never read).
#include "cistron/model/hugging_face.h"

#include "cistron/data/tokenizer_files.h"
#include "tests/fuzz/support.h"

using namespace cistron;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Folder folder;
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), 2);
  folder.write("config.json", parts[0]);
  folder.write("tokenizer_config.json", parts[1]);
  fuzz::accepts(ErrorKind::kBadData, [&] {
    model::ModelConfig config = model::read_hugging_face_config(folder.path());
    config.validate();
    CISTRON_CHECK(config.parameters() > 0 && config.active_parameters() <= config.parameters(), "parameters");
    folder.write("config.json", model::hugging_face_config(config, {}));
    CISTRON_CHECK(model::read_hugging_face_config(folder.path()).parameters() == config.parameters(), "what is written again");
  });
  fuzz::accepts(ErrorKind::kBadData, [&] {
    const std::string name = data::tokenizer_of_directory(folder.path());
    if (name.empty()) return;
    fuzz::accepts(ErrorKind::kUsage, [&] { (void)data::make_tokenizer(name); });
  });
  return 0;
}

#ifdef CISTRON_FUZZ
#include "tests/fuzz/json_mutator.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed);
  if (mutator.below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  auto parts = fuzz::parts_of(fuzz::text_of(data, size), 2);
  std::string& part = parts[mutator.below(4) == 0 ? 1 : 0];
  part = mutator.changed(part);
  return fuzz::put(fuzz::joined(parts), data, max_size);
}
#endif
