#pragma once
// What counting alone achieves: the baselines that a trained model has to beat.
//   p_n(w | h) = (count(h, w) + a_n p_{n-1}(w | h')) / (count(h) + a_n),   p_0 = 1 / V
// w: a token after the first of its record; h: the n - 1 tokens before it; h': h without its first token. Where the record has
// fewer tokens before w, p_n = p_{n-1}. This is recursive smoothing: MacKay and Peto, "A hierarchical Dirichlet language model"
// (1995).
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cistron::data {
class StoreSplit;
}  // namespace cistron::data

namespace cistron::eval {

/// Calls its argument with the tokens of each record, always in the same order.
using Records = std::function<void(const std::function<void(std::span<const int32_t>)>&)>;

/// The records of a split, which must outlive the result.
Records records_of(const data::StoreSplit& split);

struct NgramBaseline {
  int order = 0;          // n
  double strength = 0.0;  // a_n, the best on the validation records
  double loss = 0.0;      // mean -ln p_n over the validation records' predicted tokens: nats a token
};

/// Orders 1 to `max_order`, counted on `train`. Throws Error(kBadData) when `valid` has nothing to predict, Error(kUsage) when
/// `vocabulary` ^ `max_order` exceeds 2^63, and CISTRON_CHECKs that every token is below `vocabulary`.
std::vector<NgramBaseline> ngram_baselines(const Records& train, const Records& valid, int64_t vocabulary, int max_order);

}  // namespace cistron::eval
