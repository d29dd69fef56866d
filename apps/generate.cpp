// cistron generate MODEL
#include "cistron/eval/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/data/fasta.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string model, prompt, prompts, tokenizer;
  Precision precision = Precision::kF32;
  int64_t samples = 1, max_tokens = std::numeric_limits<int64_t>::max();
  uint64_t seed = 0;
  eval::Sampling sampling;
  data::OnUnknown on_unknown = data::OnUnknown::kError;
};

// What follows the prompt is written on from its last residue: no end token.
std::vector<int32_t> without_end(std::vector<int32_t> ids, const data::Tokenizer& tokenizer) {
  if (tokenizer.special().end >= 0) ids.pop_back();
  return ids;
}

void check_length(const eval::Prompt& prompt, const std::string& where, int64_t context) {
  if (std::ssize(prompt.tokens) >= context)
    throw Error(
        ErrorKind::kBadData,
        fmt::format("the prompt has {} tokens, which leaves no room in the model's context of {}", prompt.tokens.size(), context),
        where, "give a shorter one");
}

std::vector<eval::Prompt> read_prompts(const Options& o, const data::Tokenizer& tokenizer, int64_t context) {
  std::vector<eval::Prompt> prompts;
  if (o.prompts.empty()) {
    prompts.push_back({"generated", without_end(data::encode_whole(tokenizer, o.prompt, "--prompt", o.on_unknown), tokenizer)});
    check_length(prompts.back(), "--prompt", context);
    return prompts;
  }
  data::SequenceReader reader(o.prompts);
  data::SequenceRecord record;
  data::ReplacedCounts replaced{};
  std::vector<int32_t> ids;
  while (reader.next(record)) {
    data::encode_record(tokenizer, reader, record, o.on_unknown, ids, replaced);
    prompts.push_back({record.id, without_end(ids, tokenizer)});
    check_length(prompts.back(), reader.place(record), context);
  }
  return prompts;
}

// A slot's cache is as long as the longest sequence can become. More slots are faster, up to what half of the memory holds.
eval::CachedModelOptions plan(const Options& o, const model::ModelConfig& model, const std::vector<eval::Prompt>& prompts) {
  constexpr int64_t kMostSlots = 64, kPrefillTokens = 2048;
  int64_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt.tokens));
  const int64_t capacity = longest + std::min(o.max_tokens, model.context - longest);
  const int64_t per_slot = eval::CachedModel::bytes_per_slot(model, o.precision, capacity);
  const int64_t fit = std::max<int64_t>(available_host_memory() / 2 / per_slot, 1);
  const int64_t sequences = std::ssize(prompts) > kMostSlots ? kMostSlots : std::ssize(prompts) * std::min(o.samples, kMostSlots);
  const int64_t slots = std::min({sequences, kMostSlots, fit});
  const int64_t prefill = std::max(longest, std::min(kPrefillTokens, slots * longest));
  return {.model = model,
          .precision = o.precision,
          .slots = slots,
          .capacity = capacity,
          .prefill_tokens = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(prefill)))};
}

class Printer {
 public:
  Printer(const Options& options, const data::Tokenizer& tokenizer) : options_(options), tokenizer_(tokenizer) {}

  void print(const eval::Generated& generated) {
    ++sequences_;
    new_tokens_ += std::ssize(generated.tokens) - std::ssize(generated.prompt->tokens);
    const std::string residues = text(generated.tokens), id = id_of(generated);
    const char* stopped = generated.ended ? "end" : "length";
    if (options_.json) {
      const nlohmann::ordered_json line{{"id", id},
                                        {"prompt", text(generated.prompt->tokens)},
                                        {"sequence", residues},
                                        {"log_likelihood", generated.log_likelihood},
                                        {"stopped", stopped}};
      fmt::print("{}", json_line(line));
      return;
    }
    fmt::print(">{} log_likelihood={:.6f} stopped={}\n", id, generated.log_likelihood, stopped);
    constexpr size_t kLine = 60;
    for (size_t i = 0; i < residues.size(); i += kLine) fmt::print("{}\n", std::string_view(residues).substr(i, kLine));
  }

  [[nodiscard]] std::string summary() const {
    return fmt::format("{} sequences, {} new tokens", train::with_commas(sequences_), train::with_commas(new_tokens_));
  }

 private:
  [[nodiscard]] std::string id_of(const eval::Generated& generated) const {
    const std::string& id = generated.prompt->id;
    return options_.samples > 1 ? fmt::format("{}_{}", id, generated.sample + 1) : id;
  }
  // A vocabulary may hold characters that no sequence does, such as line feeds; they become the letter for any residue.
  [[nodiscard]] std::string text(const std::vector<int32_t>& tokens) const {
    std::string residues = tokenizer_.decode(tokens);
    const int32_t unknown = tokenizer_.special().unknown;
    for (char& c : residues)
      if (c <= ' ' || c > '~') c = tokenizer_.decode({&unknown, 1}).front();
    return residues;
  }

  const Options& options_;
  const data::Tokenizer& tokenizer_;
  int64_t sequences_ = 0, new_tokens_ = 0;
};

int run_generate(const Options& o) {
  if (o.device == "cuda")
    throw Error(ErrorKind::kUsage, "CUDA generates no sequences in this build", "--device cuda", "use --device cpu");
  const ModelSource source(o.model);
  const auto tokenizer = source.tokenizer(o.tokenizer);
  const auto prompts = read_prompts(o, *tokenizer, source.config().context);
  ThreadPool pool(o.threads);
  eval::CachedModel model(plan(o, source.config(), prompts), &pool);
  source.load(model.context(), model.parameters());
  model.refresh_working();

  Printer printer(o, *tokenizer);
  eval::generate(model,
                 {.sampling = o.sampling,
                  .seed = o.seed,
                  .samples = o.samples,
                  .max_tokens = o.max_tokens,
                  .end = tokenizer->special().end,
                  .num_tokens = tokenizer->vocab_size()},
                 prompts, [&](const eval::Generated& generated) { printer.print(generated); });
  train::Progress(train::ProgressOptions::standard_error(o.quiet)).say(printer.summary());
  return kDone;
}

// CLI11's ranges let NaN pass.
CLI::Validator between(double low, double high, const std::string& words) {
  return {[=](const std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= low && value <= high ? "" : "must be " + words;
          },
          words};
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "generate", "Write sequences, from nothing or from prompts",
                            "cistron generate runs/tiny --prompt MKT -n 8 --temperature 0.8 --top-p 0.95", *o);
  verb->add_option("MODEL", o->model, "A run, a checkpoint, or a Hugging Face directory")->required()->check(not_empty());
  auto* prompt = verb->add_option("--prompt", o->prompt, "What each sequence begins with; nothing if left out");
  verb->add_option("--prompts", o->prompts, "A FASTA file: sequences that begin with each of its records")
      ->excludes(prompt)
      ->check(not_empty());
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  verb->add_option("-n,--num", o->samples, "Sequences for each prompt")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->capture_default_str();
  verb->add_option("--temperature", o->sampling.temperature, "Under 1: nearer to the likeliest; 0: always the likeliest token")
      ->check(between(0, 1e6, "a number from 0 to 1000000"))
      ->capture_default_str();
  verb->add_option("--top-k", o->sampling.top_k, "Choose among the k likeliest tokens; 0: all")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  verb->add_option("--top-p", o->sampling.top_p, "Choose among the likeliest tokens whose probabilities add up to this")
      ->check(between(1e-9, 1, "a number over 0 and at most 1"))
      ->capture_default_str();
  verb->add_option("--max-tokens", o->max_tokens, "New tokens a sequence, at most; if left out, what the model's context holds")
      ->check(CLI::Range(int64_t{1}, kMost));
  verb->add_option("--seed", o->seed, "Another seed, other sequences")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_choice(*verb, "--precision", o->precision, "fp32 (the reference) or bf16",
             {{"fp32", Precision::kF32}, {"bf16", Precision::kBF16}});
  verb->add_option("--tokenizer", o->tokenizer, "For a model that brings none: esm2 or nucleotide");
  add_on_unknown(*verb, o->on_unknown);
  verb->callback([o, &run] { run = [o] { return run_generate(*o); }; });
}

}  // namespace cistron::apps
