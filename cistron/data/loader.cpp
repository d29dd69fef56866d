#include "cistron/data/loader.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/data/permutation.h"

namespace cistron::data {

WindowIndex::WindowIndex(const StoreSplit& split, int64_t context) : split_(split), context_(context), first_{0} {
  if (context < 3)
    throw Error(ErrorKind::kUsage, fmt::format("a context of {} tokens is too short", context), "data.context", "use 3 or more");
  first_.reserve(static_cast<size_t>(split.num_records()) + 1);
  for (int64_t r = 0; r < split.num_records(); ++r) {
    if (split.length(r) == 0)
      throw Error(ErrorKind::kBadData, fmt::format("record {} has no token", r), "store", "make it again with cistron prepare");
    first_.push_back(first_.back() + num_windows(split.length(r), context));
  }
}

WindowIndex::Place WindowIndex::operator[](int64_t index) const {
  int64_t record = index;
  if (size() != split_.num_records())  // else every record is one window
    record = std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
  return {record, training_window(split_.length(record), context_, index - first_[static_cast<size_t>(record)])};
}

void WindowIndex::append(int64_t index, int64_t begin, int64_t end, PackedBatch& batch) const {
  const Place place = (*this)[index];
  split_.copy_tokens(place.record, place.window.begin + begin, batch.open_sequence(end - begin));
  batch.close_sequence();
}

// The order of one epoch, and where in it each window starts: noted for every kStride-th window, the rest is counted.
class Loader::Epoch {
 public:
  Epoch(int64_t number, uint64_t seed, const WindowIndex& windows)
      : number_(number), windows_(windows), order_(windows.size(), seed, static_cast<uint64_t>(number)) {
    int64_t start = 0;
    for (int64_t rank = 0; rank < windows.size(); ++rank) {
      if (rank % kStride == 0) starts_.push_back(start);
      start += length(rank);
    }
  }

  [[nodiscard]] int64_t number() const { return number_; }

  // Appends this epoch's tokens from `offset` on until `room` is used up or the epoch is; returns how many.
  int64_t append(int64_t offset, int64_t room, PackedBatch& batch) const {
    const int64_t block = std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin() - 1;
    int64_t skip = offset - starts_[static_cast<size_t>(block)];
    int64_t left = room;
    for (int64_t rank = block * kStride; rank < windows_.size() && left > 0; ++rank) {
      const int64_t size = length(rank), begin = std::min(skip, size), end = std::min(size, begin + left);
      skip -= begin;
      left -= end - begin;
      if (end > begin) windows_.append(order_(rank), begin, end, batch);
    }
    return room - left;
  }

 private:
  static constexpr int64_t kStride = 64;
  [[nodiscard]] int64_t length(int64_t rank) const { return windows_[order_(rank)].window.length(); }

  int64_t number_;
  const WindowIndex& windows_;
  Permutation order_;
  std::vector<int64_t> starts_;
};

Loader::Loader(const StoreSplit& split, const LoaderConfig& config)
    : windows_(split, config.context), config_(config), epoch_tokens_(split.num_tokens()) {
  if (config.batch_tokens < 2)
    throw Error(ErrorKind::kUsage, fmt::format("a batch of {} tokens is too small", config.batch_tokens), "train.batch_tokens",
                "use 2 or more");
  if (epoch_tokens_ == 0)
    throw Error(ErrorKind::kBadData, "no records to train on", "the store", "prepare one with a smaller --valid-fraction");
}

Loader::~Loader() = default;

std::shared_ptr<const Loader::Epoch> Loader::epoch(int64_t number) const {
  const std::lock_guard lock(mutex_);
  for (const auto& known : recent_)
    if (known && known->number() == number) return known;
  recent_[1] = std::move(recent_[0]);
  return recent_[0] = std::make_shared<const Epoch>(number, config_.seed, windows_);
}

PackedBatch Loader::batch(int64_t index) const {
  PackedBatch batch;
  batch.reserve(config_.batch_tokens);
  int64_t position = checked_mul(index, config_.batch_tokens);
  while (batch.num_tokens() < config_.batch_tokens)
    position +=
        epoch(position / epoch_tokens_)->append(position % epoch_tokens_, config_.batch_tokens - batch.num_tokens(), batch);
  return batch;
}

EvalBatches::EvalBatches(const StoreSplit& split, int64_t context, int64_t max_tokens) : windows_(split, context), begins_{0} {
  if (max_tokens < context)
    throw Error(ErrorKind::kUsage, fmt::format("batches of {} tokens cannot hold windows of {}", max_tokens, context),
                "validation", "raise train.micro_batch_tokens to the context");
  int64_t used = 0;
  for (int64_t i = 0; i < windows_.size(); ++i) {
    const int64_t length = windows_[i].window.length();
    if (used + length > max_tokens) {
      begins_.push_back(i);
      used = 0;
    }
    used += length;
  }
  if (used > 0) begins_.push_back(windows_.size());
}

PackedBatch EvalBatches::batch(int64_t index) const {
  PackedBatch batch;
  for (int64_t i = begins_.at(static_cast<size_t>(index)); i < begins_.at(static_cast<size_t>(index) + 1); ++i)
    windows_.append(i, 0, windows_[i].window.length(), batch);
  return batch;
}

}  // namespace cistron::data
