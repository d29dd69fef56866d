// cistron bench: what is measured.
#include "apps/command.h"

namespace cistron::apps {

void add_bench(CLI::App& app, Run& run) {
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  const std::string example = "cistron bench train --preset tiny-protein --batch 8 --seq 512 --recipe fp32";
  bench->require_subcommand(1);
  bench->footer("Example:\n  " + example);
  add_bench_train(*bench, example, run);
  add_bench_moe(*bench, run);
  add_bench_kernels(*bench, run);
}

}  // namespace cistron::apps
