#pragma once
// Batches of tokens, as pure functions of their index: training can start anywhere, and a run that resumes sees what an
// undisturbed one would.
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cistron/data/pack.h"
#include "cistron/data/store.h"

namespace cistron::data {

/// Numbers the training windows (pack.h) of all records.
class WindowIndex {
 public:
  /// Throws Error(kUsage) unless context >= 3.
  WindowIndex(const StoreSplit& split, int64_t context);
  struct Place {
    int64_t record = 0;
    Window window;
  };
  [[nodiscard]] int64_t size() const { return first_.back(); }
  [[nodiscard]] Place operator[](int64_t index) const;
  /// Appends window `index`'s tokens [begin, end) to `batch`, as a sequence of its own.
  void append(int64_t index, int64_t begin, int64_t end, PackedBatch& batch) const;

 private:
  StoreSplit split_;
  int64_t context_;
  std::vector<int64_t> first_;  // [N + 1], the first window of each record
};

struct LoaderConfig {
  int64_t context = 0;       ///< most tokens of a sequence
  int64_t batch_tokens = 0;  ///< tokens of a batch, exactly
  uint64_t seed = 0;
};

/// Endless training batches. Each epoch puts all windows in an order of its own (a bijection keyed by seed and epoch, no shuffle
/// buffer); the epochs follow one another without a seam, and batch i is tokens [i B, (i + 1) B) of that stream. A window that
/// batches cut is a sequence in each; a piece of one token has no label, counts nothing.
class Loader {
 public:
  /// Throws Error(kBadData) when it holds no record.
  Loader(const StoreSplit& split, const LoaderConfig& config);
  ~Loader();
  /// Safe to call from several threads.
  [[nodiscard]] PackedBatch batch(int64_t index) const;
  /// Tokens of an epoch, all windows once.
  [[nodiscard]] int64_t epoch_tokens() const { return epoch_tokens_; }
  [[nodiscard]] int64_t num_windows() const { return windows_.size(); }

 private:
  class Epoch;
  [[nodiscard]] std::shared_ptr<const Epoch> epoch(int64_t number) const;

  WindowIndex windows_;
  LoaderConfig config_;
  int64_t epoch_tokens_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Epoch> recent_[2];  // the newest first
};

/// Every window of a split once, in order, in batches of at most `max_tokens` tokens; no window is cut. For validation.
class EvalBatches {
 public:
  /// Throws Error(kUsage) unless max_tokens >= context.
  EvalBatches(const StoreSplit& split, int64_t context, int64_t max_tokens);
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  [[nodiscard]] PackedBatch batch(int64_t index) const;

 private:
  WindowIndex windows_;
  std::vector<int64_t> begins_;  // [size + 1], the first window of each batch
};

}  // namespace cistron::data
