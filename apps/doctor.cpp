// cistron doctor
#include "cistron/cuda/doctor.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/show.h"

namespace cistron::apps {

namespace {

const char* name_of(cuda::Verdict verdict) {
  switch (verdict) {
    case cuda::Verdict::kGood:
      return "good";
    case cuda::Verdict::kNote:
      return "note";
    case cuda::Verdict::kMissing:
      return "missing";
  }
  return "?";
}

int run_doctor(const Common& o) {
  const auto findings = cuda::doctor();
  if (!o.json) {
    fmt::print("{}", cuda::to_text(findings));
    return kDone;
  }
  for (const auto& finding : findings) {
    const nlohmann::ordered_json line{
        {"what", finding.what}, {"verdict", name_of(finding.verdict)}, {"found", finding.found}, {"advice", finding.advice}};
    fmt::print("{}", json_line(line));
  }
  return kDone;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Common>();
  CLI::App* verb = add_verb(app, "doctor", "What this machine has, what will be used of it, what is missing and how to get it",
                            "cistron doctor", *o);
  verb->callback([o, &run] { run = [o] { return run_doctor(*o); }; });
}

}  // namespace cistron::apps
