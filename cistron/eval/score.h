#pragma once
// The log-likelihood of records under a causal model. Records longer than the context are read in windows that overlap by half of
// it, each token predicted exactly once.
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cistron/data/pack.h"
#include "cistron/eval/inference.h"

namespace cistron::eval {

struct RecordScore {
  std::string id;
  std::vector<float> positions;  ///< log-likelihood of every token after the first, nats
  [[nodiscard]] int64_t tokens() const { return static_cast<int64_t>(positions.size()); }
  /// Their sum, in order, in double.
  [[nodiscard]] double log_likelihood() const;
  /// exp(-log_likelihood / tokens)
  [[nodiscard]] double perplexity() const;
};

/// Takes records one by one, evaluates them in full batches, and hands them on in the order in which they came. In fp32 on a CPU
/// a record's numbers do not depend, to the bit, on the records around it.
class Scorer {
 public:
  /// Windows have at most `context` tokens (at most the model's, at most the inference's batch). `pad` fills up batches.
  Scorer(Inference& inference, int64_t context, int32_t pad, std::function<void(const RecordScore&)> sink);

  /// `tokens` are whole: with begin and end.
  void add(std::string id, std::span<const int32_t> tokens);
  /// Evaluates what is left.
  void finish();

 private:
  struct Pending {
    RecordScore score;
    int64_t wanted = 0;  // positions
  };
  void add_window(std::span<const int32_t> tokens, int64_t first_scored);
  void flush();
  void hand_on();

  Inference& inference_;
  int64_t context_;
  int32_t pad_;
  std::function<void(const RecordScore&)> sink_;
  data::PackedBatch batch_;
  std::vector<Pending*> owners_;  // of each label in `batch_`, in order
  std::deque<Pending> pending_;   // a deque: its elements keep their places
};

}  // namespace cistron::eval
