#pragma once
// Sequences from a causal model, many at a time: whenever one is finished, the next prompt takes its slot.
#include <functional>
#include <string>
#include <vector>

#include "cistron/eval/cached_model.h"
#include "cistron/eval/sample.h"

namespace cistron::eval {

struct Prompt {
  std::string id;
  std::vector<int32_t> tokens;  ///< with the begin token, without an end; at least one
};

struct GenerateOptions {
  Sampling sampling;
  uint64_t seed = 0;
  int64_t samples = 1;     ///< of each prompt
  int64_t max_tokens = 0;  ///< new ones a sequence; the model's capacity ends it too
  int32_t end = -1;        ///< the token that ends a sequence; -1: none
  int64_t num_tokens = 0;  ///< only tokens below are chosen: a model's table may have more rows than its tokenizer has tokens
};

struct Generated {
  const Prompt* prompt = nullptr;
  int64_t sample = 0;           ///< from 0, of this prompt
  std::vector<int32_t> tokens;  ///< the prompt's, the new ones, and the end token where it came
  double log_likelihood = 0.0;  ///< of every token after the first, nats, as `cistron score` gives it
  bool ended = false;           ///< by the end token; otherwise by length
};

/// Writes on from every prompt and hands the results on in order: the prompts', then the samples'. The random number behind a
/// token is a function of the seed, the prompt's place, the sample and the position alone; on a CPU in fp32 results do not
/// depend, to the bit, on the number of slots, threads or samples. A prompt must be shorter than the model's capacity.
void generate(CachedModel& model, const GenerateOptions& options, const std::vector<Prompt>& prompts,
              const std::function<void(const Generated&)>& sink);

}  // namespace cistron::eval
