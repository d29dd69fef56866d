// cistron prepare FILE... --tokenizer T --out STORE
#include "cistron/data/prepare.h"

#include <fmt/format.h>

#include <memory>

#include "apps/command.h"
#include "apps/output.h"

namespace cistron::apps {

namespace {

struct Options : Common, data::PrepareOptions {};

int run_prepare(Options& o) {
  Output output{.path = o.out, .is_ours = is_store};
  for (const auto& file : o.files) output.inputs.push_back(file);
  o.data::PrepareOptions::force = check_output(output, o);
  const data::PrepareReport report = data::prepare(o);
  fmt::print("{}", o.json ? report.json() + "\n" : report.text());
  return kDone;
}

}  // namespace

void add_prepare(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb =
      add_verb(app, "prepare", "Make a token store from FASTA or FASTQ files, plain, gzip or bgzip",
               "cistron prepare proteins.fasta.gz --tokenizer esm2 --out data/proteins --valid-fraction 0.02", *o, true);
  verb->add_option("FILE", o->files, "Sequence files")->required();
  verb->add_option("--tokenizer", o->tokenizer, "esm2 or nucleotide")->required();
  verb->add_option("--out", o->out, "The store's directory")->required();
  verb->add_option("--valid-fraction", o->valid_fraction, "Share of distinct sequences that is held out")
      ->capture_default_str()
      ->check(not_empty());
  add_choice(*verb, "--on-duplicate", o->on_duplicate, "An identifier that appears twice: an error, or renamed",
             {{"error", data::OnDuplicate::kError}, {"rename", data::OnDuplicate::kRename}});
  add_on_unknown(*verb, o->on_unknown);
  verb->callback([o, &run] { run = [o] { return run_prepare(*o); }; });
}

}  // namespace cistron::apps
