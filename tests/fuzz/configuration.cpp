// A configuration in TOML and, behind "%%", an override. What is taken must come through its own text again.
#include "cistron/train/config.h"
#include "tests/fuzz/support.h"

using namespace cistron;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), 2);
  std::vector<std::string> overrides;
  if (!parts[1].empty()) overrides.push_back(parts[1]);
  fuzz::accepts(ErrorKind::kUsage, [&] {
    train::RunConfig config = train::parse_config(parts[0], "run.toml", overrides);
    const auto check_text = [](const train::RunConfig& one) {
      const train::RunConfig again = train::parse_config(train::to_toml(one), "again.toml");
      const auto all = train::differences(one, again);
      CISTRON_CHECK(all.empty(), "{}", all[0]);
    };
    check_text(config);
    train::resolve(config, false);
    check_text(config);
    CISTRON_CHECK(config.total_steps() > 0 && config.micro_batches() > 0 && config.model.parameters() > 0, "steps");
  });
  return 0;
}
