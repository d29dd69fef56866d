// The `cistron` program: parse, call the verb, turn errors into one line and an exit status.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "apps/command.h"
#include "apps/out_of_memory.h"
#include "apps/time_limit.h"
#include "apps/version.h"
#include "cistron/core/current_error.h"
#include "cistron/core/nearest.h"
#include "cistron/core/one_line.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/mapped_file.h"
#include "cistron/train/progress.h"

namespace {

using namespace cistron;

int fail(ErrorKind kind, const std::string& message) {
  train::show(stderr, fmt::format("cistron: error: {}\n", one_line(message)));
  return static_cast<int>(kind);
}

// Else the next file that is opened gets the number, and what is printed lands in it. Reading only, so that writing still fails.
void fill_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);
}

// A pipe that nobody reads and a file over its limit become errors of the call that met them.
void ignore_signals_of_writing() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

int run_verb(const apps::Run& run) {
  const int status = run();
  if (std::fflush(stdout) != 0) io::throw_errno("cannot write the results", "standard output");
  return status;
}

void check_verb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) verbs.push_back(verb->get_name());
  if (argc < 2 || argv[1][0] == '-' || std::ranges::find(verbs, argv[1]) != verbs.end()) return;
  throw Error(ErrorKind::kUsage, fmt::format("unknown verb '{}'", argv[1]), "command line",
              fmt::format("did you mean '{}'? The verbs are {}", nearest(argv[1], verbs), fmt::join(verbs, ", ")));
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Train mixture-of-experts models for biology"};
  app.name("cistron");
  app.footer("Example:\n  cistron train configs/tiny-protein.toml --out runs/tiny\n  cistron VERB --help says more.");
  app.set_version_flag("--version", apps::version_text());
  app.require_subcommand(1);
  apps::Run run;
  apps::add_prepare(app, run);
  apps::add_train(app, run);
  apps::add_score(app, run);
  apps::add_generate(app, run);
  apps::add_export(app, run);
  apps::add_import(app, run);
  apps::add_info(app, run);
  apps::add_bench(app, run);
  apps::add_doctor(app, run);
  apps::add_plan(app, run);
  check_verb(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    return fail(ErrorKind::kUsage, fmt::format("{}: command line: see cistron --help", error.what()));
  }
  return run_verb(run);
}

// What is being handled; also where no memory is left for its message.
int fail_with_current() noexcept {
  try {
    const Error error = current_error();
    return fail(error.kind(), error.what());
  } catch (...) {
    return apps::say_out_of_memory();
  }
}

}  // namespace

int main(int argc, char** argv) {
  fill_closed_streams();
  ignore_signals_of_writing();
  apps::end_clearly_without_memory();
  apps::say_when_time_is_up();
  io::say_which_file_shrank();
  try {
    return parse_and_run(argc, argv);
  } catch (...) {
    return fail_with_current();
  }
}
