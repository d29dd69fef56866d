#include "apps/command.h"

#include "cistron/core/error.h"

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

void check_device(const Common& common) {
  if (common.device == "cuda")
    throw Error(ErrorKind::kUsage, "this build has no CUDA backend", "--device cuda", "use --device cpu");
}

}  // namespace cistron::apps
