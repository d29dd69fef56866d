#pragma once
// What all verbs of `cistron` share. A verb is one file: it declares its options and gives the function that runs it.
#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>

#include "cistron/core/device.h"
#include "cistron/core/thread_pool.h"
#include "cistron/data/tokenizer.h"

namespace cistron::apps {

/// Exit statuses besides those of ErrorKind.
constexpr int kDone = 0, kInterruptedBase = 128;

struct Common {
  bool json = false;
  bool quiet = false;
  bool force = false;
  int threads = 0;
  std::string device = "auto";
};

/// The verb that the command line chose; gives the exit status.
using Run = std::function<int()>;

/// A subcommand with the options of `common`; `example` ends its help. `force`: it has an output that could be overwritten.
CLI::App* add_verb(CLI::App& app, const std::string& name, const std::string& description, const std::string& example,
                   Common& common, bool force = false);

/// For paths: '' is refused, which is what an unset variable of the shell leaves.
CLI::Validator not_empty();

/// An option that takes one of `words`, as --help and the error list them; `value` is the default.
template <class Value>
void add_choice(CLI::App& verb, const std::string& name, Value& value, const std::string& description,
                const std::map<std::string, Value>& words) {
  const auto set = [&value, words](const std::string& word) { value = words.at(word); };
  CLI::Option* option = verb.add_option_function<std::string>(name, set, description)->check(CLI::IsMember(words));
  for (const auto& [word, meaning] : words) {
    if (meaning == value) option->default_str(word);
  }
}

/// --on-unknown, of the verbs that read sequences.
void add_on_unknown(CLI::App& verb, data::OnUnknown& on_unknown);

/// What --device means here (cuda/choose_device.h); `config_kind` stands in where it says nothing. A choice is told in one line
/// on standard error, unless --quiet.
Device choose_device(const Common& common, const std::string& config_kind = "auto");

void add_prepare(CLI::App& app, Run& run);
void add_train(CLI::App& app, Run& run);
void add_score(CLI::App& app, Run& run);
void add_generate(CLI::App& app, Run& run);
void add_export(CLI::App& app, Run& run);
void add_import(CLI::App& app, Run& run);
void add_info(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_bench_train(CLI::App& bench, const std::string& example, Run& run);
void add_bench_kernels(CLI::App& bench, Run& run);
void add_bench_moe(CLI::App& bench, Run& run);
void add_doctor(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);

}  // namespace cistron::apps
