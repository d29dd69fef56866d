#include "cistron/nn/lease_order.h"

#include <set>
#include <utility>

#include "cistron/core/error.h"

namespace cistron::nn {

void LeaseOrder::begin() {
  place_ = 0;
  learning_.clear();
}

size_t LeaseOrder::next(size_t index) {
  if (known_.empty())
    learning_.push_back(index);
  else
    CISTRON_CHECK(place_ < known_.size() && known_[place_] == index, "[parameters] lease {} is not what it was in the first pass",
                  place_);
  return place_++;
}

void LeaseOrder::end() {
  if (!known_.empty()) {
    CISTRON_CHECK(place_ == known_.size(), "[parameters] {} leases, {} in the first pass", place_, known_.size());
    return;
  }
  known_ = std::move(learning_);
  last_.assign(known_.size(), false);
  std::set<size_t> later;
  for (size_t place = known_.size(); place-- > 0;) last_[place] = later.insert(known_[place]).second;
}

}  // namespace cistron::nn
