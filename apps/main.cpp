// The `cistron` program: parse, call the verb, turn errors into one line and an exit status.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "apps/command.h"
#include "apps/version.h"
#include "cistron/core/error.h"
#include "cistron/core/nearest.h"

namespace {

using namespace cistron;

int fail(ErrorKind kind, const std::string& message) {
  std::string line = message;
  for (char& c : line)
    if (c == '\n') c = ' ';
  fmt::print(stderr, "cistron: error: {}\n", line);
  return static_cast<int>(kind);
}

int run_verb(const apps::Run& run) {
  const int status = run();
  if (std::fflush(stdout) != 0) throw Error(ErrorKind::kOutOfSpace, "cannot write the results", "standard output", "make room");
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
  apps::add_export(app, run);
  apps::add_import(app, run);
  apps::add_info(app, run);
  apps::add_bench(app, run);
  apps::add_doctor(app, run);
  check_verb(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    return fail(ErrorKind::kUsage, fmt::format("{}: command line: see cistron --help", error.what()));
  }
  return run_verb(run);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const Error& error) {
    return fail(error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::kOutOfSpace, "out of memory: host: use a smaller model or batch");
  } catch (const std::exception& error) {
    return fail(ErrorKind::kFailed, error.what());
  }
}
