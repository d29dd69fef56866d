#include "cistron/eval/ngram.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <unordered_map>

#include "cistron/core/error.h"
#include "cistron/data/store.h"

namespace cistron::eval {
namespace {

/// Calls `use(history, token)` for every predicted token that has order - 1 tokens before it; `lacking()` for the others.
template <class Use, class Lacking>
void for_each_token(const Records& records, int order, int64_t vocabulary, const Use& use, const Lacking& lacking) {
  const auto before = static_cast<size_t>(order) - 1;
  records([&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      CISTRON_CHECK(token >= 0 && token < vocabulary, "[ngram] token {} in a vocabulary of {}", token, vocabulary);
    }
    for (size_t i = 1; i < tokens.size(); ++i) {
      if (i < before) {
        lacking();
        continue;
      }
      uint64_t history = 0;  // a number in base V
      for (size_t j = i - before; j < i; ++j)
        history = history * static_cast<uint64_t>(vocabulary) + static_cast<uint64_t>(tokens[j]);
      use(history, static_cast<uint64_t>(tokens[i]));
    }
  });
}

class Counts {
 public:
  Counts(const Records& train, int order, int64_t vocabulary) : vocabulary_(static_cast<uint64_t>(vocabulary)) {
    const auto add = [&](uint64_t history, uint64_t token) {
      ++of_ngram_[history * vocabulary_ + token];
      ++of_history_[history];
    };
    for_each_token(train, order, vocabulary, add, [] {});
  }
  [[nodiscard]] double ngram(uint64_t history, uint64_t token) const { return find(of_ngram_, history * vocabulary_ + token); }
  [[nodiscard]] double history(uint64_t history) const { return find(of_history_, history); }

 private:
  using Table = std::unordered_map<uint64_t, uint64_t>;
  static double find(const Table& table, uint64_t key) {
    const auto found = table.find(key);
    return found == table.end() ? 0.0 : static_cast<double>(found->second);
  }
  uint64_t vocabulary_;
  Table of_ngram_, of_history_;
};

/// One predicted token of the validation records.
struct Event {
  double ngram = 0.0, history = 0.0;  // counts in the training records
  double p = 0.0;                     // by the orders so far

  [[nodiscard]] double smoothed(double a) const { return (ngram + a * p) / (history + a); }
};

double mean_nll(const std::vector<Event>& events, double a) {
  double sum = 0.0;
  for (const Event& event : events) sum -= std::log(event.smoothed(a));
  return sum / static_cast<double>(events.size());
}

/// The least value of `f` on [low, high], to a width of 1e-3 (golden section search: one minimum is assumed).
double minimise(const std::function<double(double)>& f, double low, double high) {
  constexpr double kShrink = 1.0 / std::numbers::phi;
  double left = high - kShrink * (high - low), right = low + kShrink * (high - low);
  double f_left = f(left), f_right = f(right);
  while (high - low > 1e-3) {
    if (f_left < f_right) {
      high = right, right = left, f_right = f_left;
      left = high - kShrink * (high - low), f_left = f(left);
    } else {
      low = left, left = right, f_left = f_right;
      right = low + kShrink * (high - low), f_right = f(right);
    }
  }
  return 0.5 * (low + high);
}

/// Fills in the counts; an event that lacks history keeps its p, whatever a is.
void look_up(const Counts& counts, const Records& valid, int order, int64_t vocabulary, std::vector<Event>& events) {
  auto next = events.begin();
  const auto set = [&](double ngram, double history) {
    next->ngram = ngram;
    next->history = history;
    ++next;
  };
  for_each_token(
      valid, order, vocabulary,
      [&](uint64_t history, uint64_t token) { set(counts.ngram(history, token), counts.history(history)); },
      [&] { set(0.0, 0.0); });
}

std::vector<Event> uniform_events(const Records& valid, int64_t vocabulary) {
  std::vector<Event> events;
  const auto add = [&](uint64_t, uint64_t) { events.push_back({.p = 1.0 / static_cast<double>(vocabulary)}); };
  for_each_token(valid, 1, vocabulary, add, [] {});
  if (events.empty())
    throw Error(ErrorKind::kBadData, "nothing to predict", "validation records", "prepare with --valid-fraction above 0");
  return events;
}

}  // namespace

Records records_of(const data::StoreSplit& split) {
  return [&split](const std::function<void(std::span<const int32_t>)>& use) {
    std::vector<int32_t> tokens;
    for (int64_t record = 0; record < split.num_records(); ++record) {
      tokens.resize(static_cast<size_t>(split.length(record)));
      split.copy_tokens(record, 0, tokens);
      use(tokens);
    }
  };
}

std::vector<NgramBaseline> ngram_baselines(const Records& train, const Records& valid, int64_t vocabulary, int max_order) {
  if (max_order < 1 || max_order * std::log2(static_cast<double>(vocabulary)) > 63.0) {
    throw Error(ErrorKind::kUsage, "order out of range", fmt::format("{}-grams of {} tokens", max_order, vocabulary),
                "choose a lower order, at least 1");
  }
  std::vector<Event> events = uniform_events(valid, vocabulary);
  std::vector<NgramBaseline> baselines;
  for (int order = 1; order <= max_order; ++order) {
    look_up(Counts(train, order, vocabulary), valid, order, vocabulary, events);
    const double a =
        std::exp(minimise([&](double log_a) { return mean_nll(events, std::exp(log_a)); }, std::log(1e-4), std::log(1e8)));
    baselines.push_back({.order = order, .strength = a, .loss = mean_nll(events, a)});
    for (Event& event : events) event.p = event.smoothed(a);
  }
  return baselines;
}

}  // namespace cistron::eval
