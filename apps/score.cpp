// cistron score MODEL --fasta F
#include "cistron/eval/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/data/fasta.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string model, fasta, tokenizer, precision = "fp32";
  bool per_position = false;
  data::OnUnknown on_unknown = data::OnUnknown::kError;
};

class Printer {
 public:
  explicit Printer(const Options& options) : options_(options) {
    if (!options.json) fmt::print("id\ttokens\tlog_likelihood\tperplexity{}\n", options.per_position ? "\tpositions" : "");
  }

  void print(const eval::RecordScore& score) {
    ++records_;
    tokens_ += score.tokens();
    log_likelihood_ += score.log_likelihood();
    options_.json ? print_json(score) : print_row(score);
  }

  [[nodiscard]] std::string summary() const {
    return fmt::format("{} records, {} tokens, {:.4f} nats a token", train::with_commas(records_), train::with_commas(tokens_),
                       -log_likelihood_ / static_cast<double>(std::max<int64_t>(tokens_, 1)));
  }

 private:
  void print_json(const eval::RecordScore& score) const {
    nlohmann::ordered_json line{{"id", score.id},
                                {"tokens", score.tokens()},
                                {"log_likelihood", score.log_likelihood()},
                                {"perplexity", score.perplexity()}};
    if (options_.per_position) line["positions"] = score.positions;
    fmt::print("{}", json_line(line));
  }
  void print_row(const eval::RecordScore& score) const {
    fmt::print("{}\t{}\t{:.6f}\t{:.6f}", score.id, score.tokens(), score.log_likelihood(), score.perplexity());
    if (options_.per_position) fmt::print("\t{:.6f}", fmt::join(score.positions, ","));
    fmt::print("\n");
  }

  const Options& options_;
  int64_t records_ = 0, tokens_ = 0;
  double log_likelihood_ = 0.0;
};

Precision precision_of(const std::string& name) {
  if (name == "mxfp8") return Precision::kMxfp8;
  return name == "bf16" ? Precision::kBF16 : Precision::kF32;
}

int run_score(const Options& o) {
  const Device device = choose_device(o);
  const ModelSource source(o.model);
  const int64_t context = source.config().context;
  if (context < 2)
    throw Error(ErrorKind::kBadData, "a model with a context of 1 token, which leaves none to predict", o.model,
                "score with one of at least 2");
  const auto tokenizer = source.tokenizer(o.tokenizer);
  data::SequenceReader reader(o.fasta);
  ThreadPool pool(o.threads);
  constexpr int64_t kBatchTokens = 4096;
  model::check_mxfp8(source.config(), {}, precision_of(o.precision), device, "--precision mxfp8");
  eval::Inference inference({.model = source.config(),
                             .device = device,
                             .precision = precision_of(o.precision),
                             .batch_tokens = std::max(kBatchTokens, context)},
                            &pool);
  source.load(inference.context(), inference.parameters());
  inference.refresh_working();

  Printer printer(o);
  eval::Scorer scorer(inference, context, std::max(tokenizer->special().end, 0),
                      [&](const eval::RecordScore& score) { printer.print(score); });
  data::SequenceRecord record;
  data::ReplacedCounts replaced{};
  std::vector<int32_t> ids;
  while (reader.next(record)) {
    data::encode_record(*tokenizer, reader, record, o.on_unknown, ids, replaced);
    scorer.add(record.id, ids);
  }
  scorer.finish();
  train::Progress(train::ProgressOptions::standard_error(o.quiet)).say(printer.summary());
  return kDone;
}

}  // namespace

void add_score(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "score", "Log-likelihood and perplexity of each record of a FASTA file",
                            "cistron score runs/tiny --fasta queries.fasta --json", *o);
  verb->add_option("MODEL", o->model, "A run, a checkpoint, or a Hugging Face directory")->required()->check(not_empty());
  verb->add_option("--fasta", o->fasta, "The records; FASTQ and compressed files too")->required();
  verb->add_option("--precision", o->precision, "fp32 (the reference), bf16 or mxfp8")
      ->check(CLI::IsMember({"fp32", "bf16", "mxfp8"}))
      ->capture_default_str();
  verb->add_flag("--per-position", o->per_position, "The log-likelihood of every token too");
  verb->add_option("--tokenizer", o->tokenizer, "For a model that brings none: esm2 or nucleotide");
  add_on_unknown(*verb, o->on_unknown);
  verb->callback([o, &run] { run = [o] { return run_score(*o); }; });
}

}  // namespace cistron::apps
