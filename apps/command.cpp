#include "apps/command.h"

#include "cistron/cuda/choose_device.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

CLI::App* add_verb(CLI::App& app, const std::string& name, const std::string& description, const std::string& example,
                   Common& common, bool force) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->footer("Example:\n  " + example);
  verb->add_flag("--json", common.json, "Results as JSON, one object a line");
  verb->add_flag("--quiet,-q", common.quiet, "No progress on standard error");
  verb->add_option("--threads", common.threads, "Threads; 0: all cores")->check(CLI::Range(0, 4096));
  verb->add_option("--device", common.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  if (force) verb->add_flag("--force", common.force, "Replace an output that exists");
  return verb;
}

CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "it is empty; is a shell variable unset?" : ""; }, ""};
}

void add_on_unknown(CLI::App& verb, data::OnUnknown& on_unknown) {
  add_choice(verb, "--on-unknown", on_unknown, "A character that the tokenizer refuses: an error, or its unknown token",
             {{"error", data::OnUnknown::kError}, {"replace", data::OnUnknown::kReplace}});
}

Device choose_device(const Common& common, const std::string& config_kind) {
  const std::string& wanted = common.device == "auto" ? config_kind : common.device;
  const auto choice = cuda::choose_device(wanted, wanted == "cpu" ? cuda::CardSurvey{} : cuda::survey_cards());
  if (!choice.say.empty() && !common.quiet) train::show(stderr, choice.say + "\n");
  return choice.device;
}

}  // namespace cistron::apps
