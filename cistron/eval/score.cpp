#include "cistron/eval/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/data/pad.h"

namespace cistron::eval {

double RecordScore::log_likelihood() const { return std::accumulate(positions.begin(), positions.end(), 0.0); }

double RecordScore::perplexity() const { return std::exp(-log_likelihood() / static_cast<double>(positions.size())); }

Scorer::Scorer(Inference& inference, int64_t context, int32_t pad, std::function<void(const RecordScore&)> sink)
    : inference_(inference), context_(context), pad_(pad), sink_(std::move(sink)) {
  CISTRON_CHECK(context_ >= 2 && context_ <= inference_.options().batch_tokens && context_ <= inference_.options().model.context,
                "[score] a context of {} tokens", context_);
}

void Scorer::add(std::string id, std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  pending_.push_back({.score = {.id = std::move(id)}, .wanted = std::max<int64_t>(length - 1, 0)});
  pending_.back().score.positions.reserve(tokens.size());
  if (length >= 2) {  // a single token has nothing before it to be predicted from
    for (const auto& window : data::scoring_windows(length, context_, context_ / 2))
      add_window(tokens.subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.length())), window.first_scored);
  }
  hand_on();
}

void Scorer::add_window(std::span<const int32_t> tokens, int64_t first_scored) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (batch_.num_tokens() + length > inference_.options().batch_tokens) flush();
  std::ranges::copy(tokens, batch_.open_sequence(length).begin());
  batch_.close_sequence(first_scored);
  owners_.insert(owners_.end(), static_cast<size_t>(std::max<int64_t>(length - first_scored, 0)), &pending_.back());
}

void Scorer::flush() {
  if (batch_.num_tokens() == 0) return;
  data::pad_batch(batch_, inference_.padded(batch_.num_tokens()), pad_);
  const auto nll = inference_.nll(batch_);
  size_t label = 0;
  for (size_t i = 0; i < nll.size(); ++i)
    if (batch_.labels[i] >= 0) owners_[label++]->score.positions.push_back(-nll[i]);
  batch_ = {};
  owners_.clear();
  hand_on();
}

void Scorer::hand_on() {
  while (!pending_.empty() && pending_.front().score.tokens() == pending_.front().wanted) {
    sink_(pending_.front().score);
    pending_.pop_front();
  }
}

void Scorer::finish() {
  flush();
  hand_on();
}

}  // namespace cistron::eval
