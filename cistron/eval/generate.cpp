#include "cistron/eval/generate.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"

namespace cistron::eval {

namespace {

// One sequence in one slot.
struct Active {
  int64_t index = 0;  // among all samples of all prompts
  int32_t slot = 0;
  Generated result;
};

class Generation {
 public:
  Generation(CachedModel& model, const GenerateOptions& options, const std::vector<Prompt>& prompts,
             const std::function<void(const Generated&)>& sink)
      : model_(model),
        options_(options),
        prompts_(prompts),
        sink_(sink),
        total_(std::ssize(prompts) * options.samples),
        free_slots_(static_cast<size_t>(model.options().slots)) {
    std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  }

  void run() {
    while (next_ < total_ || !active_.empty()) {
      while (next_ < total_ && !free_slots_.empty()) begin_some();
      go_on();
    }
  }

 private:
  // As many prompts as there are slots, and tokens of a batch.
  void begin_some() {
    data::PackedBatch batch;
    std::vector<int32_t> slots;
    std::vector<Active> begun;
    for (; next_ < total_ && !free_slots_.empty(); ++next_) {
      const Prompt& prompt = prompts_[static_cast<size_t>(next_ / options_.samples)];
      check(prompt);
      const auto length = std::ssize(prompt.tokens);
      if (batch.num_tokens() + length > model_.options().prefill_tokens) break;
      std::ranges::copy(prompt.tokens, batch.open_sequence(length).begin());
      batch.close_sequence();
      slots.push_back(free_slots_.back());
      free_slots_.pop_back();
      begun.push_back({.index = next_,
                       .slot = slots.back(),
                       .result = {.prompt = &prompt, .sample = next_ % options_.samples, .tokens = prompt.tokens}});
    }
    const auto [logits, nll] = model_.prefill(batch, slots);
    for (size_t s = 0; s < begun.size(); ++s) {
      const auto of_prompt = nll.subspan(static_cast<size_t>(batch.cu_seqlens[s]), begun[s].result.tokens.size());
      begun[s].result.log_likelihood = -std::accumulate(of_prompt.begin(), of_prompt.end(), 0.0);
    }
    choose(begun, logits);
  }

  void check(const Prompt& prompt) const {
    const auto length = std::ssize(prompt.tokens);
    CISTRON_CHECK(length > 0 && length < model_.options().capacity && length <= model_.options().prefill_tokens,
                  "[generate] the prompt '{}' has {} tokens", prompt.id, length);
  }

  // One token more for each sequence.
  void go_on() {
    if (active_.empty()) return;
    CachedModel::Next next;
    for (const Active& active : active_) {
      next.tokens.push_back(active.result.tokens.back());
      next.slots.push_back(active.slot);
      next.positions.push_back(static_cast<int32_t>(active.result.tokens.size()) - 1);
    }
    const Tensor logits = model_.decode(next);
    std::vector<Active> all = std::exchange(active_, {});
    choose(all, logits);
  }

  // Appends a token to each of `some`; those that go on become active.
  void choose(std::vector<Active>& some, const Tensor& logits) {
    const auto width = static_cast<size_t>(logits.dim(1));
    model_.parallel_for(std::ssize(some), [&](int64_t i) {
      append(some[static_cast<size_t>(i)], logits.span<float>().subspan(static_cast<size_t>(i) * width, width));
    });
    for (Active& one : some) is_done(one.result) ? finish(one) : active_.push_back(std::move(one));
  }

  void append(Active& one, std::span<const float> logits) const {
    Generated& result = one.result;
    const auto prompt = static_cast<uint64_t>(one.index / options_.samples), sample_index = static_cast<uint64_t>(result.sample);
    const Rng rng(options_.seed, prompt << 32U | sample_index);
    const int32_t token = sample(logits, options_.num_tokens, options_.sampling, rng.uniform(result.tokens.size()));
    result.tokens.push_back(token);
    result.log_likelihood += log_probability(logits, token);
    result.ended = token == options_.end;
  }

  [[nodiscard]] bool is_done(const Generated& result) const {
    const auto length = std::ssize(result.tokens);
    return result.ended || length - std::ssize(result.prompt->tokens) >= options_.max_tokens ||
           length >= model_.options().capacity;
  }

  void finish(Active& one) {
    free_slots_.push_back(one.slot);
    finished_.emplace(one.index, std::move(one.result));
    for (; !finished_.empty() && finished_.begin()->first == next_result_; ++next_result_) {
      sink_(finished_.begin()->second);
      finished_.erase(finished_.begin());
    }
  }

  CachedModel& model_;
  const GenerateOptions& options_;
  const std::vector<Prompt>& prompts_;
  const std::function<void(const Generated&)>& sink_;
  int64_t total_;
  std::vector<int32_t> free_slots_;
  std::vector<Active> active_;
  std::map<int64_t, Generated> finished_;  // that wait for an earlier one
  int64_t next_ = 0, next_result_ = 0;
};

}  // namespace

void generate(CachedModel& model, const GenerateOptions& options, const std::vector<Prompt>& prompts,
              const std::function<void(const Generated&)>& sink) {
  constexpr int64_t kMost = int64_t{1} << 32;  // prompts, and samples of each: they share a word
  CISTRON_CHECK(options.samples > 0 && options.samples < kMost && std::ssize(prompts) < kMost,
                "[generate] {} samples of {} prompts", options.samples, prompts.size());
  CISTRON_CHECK(options.max_tokens > 0 && options.num_tokens > 0 && options.num_tokens <= model.options().model.vocabulary,
                "[generate] {} new tokens out of {}", options.max_tokens, options.num_tokens);
  Generation(model, options, prompts, sink).run();
}

}  // namespace cistron::eval
