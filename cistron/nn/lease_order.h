#pragma once
// The order in which a pass leases weights: learnt from its first run, followed by the others, so that what comes next can be
// gathered ahead.
#include <cstddef>
#include <vector>

namespace cistron::nn {

class LeaseOrder {
 public:
  void begin();
  /// Notes that parameter `index` is leased now, and gives the lease's place in the pass.
  size_t next(size_t index);
  /// The first pass ends here; a later one that did not come to the end of the order is an error.
  void end();

  /// Parameters by place; empty while the first pass runs.
  [[nodiscard]] const std::vector<size_t>& known() const { return known_; }
  /// No lease of the same parameter is known to follow `place` in the pass.
  [[nodiscard]] bool is_last(size_t place) const { return known_.empty() || last_[place]; }

 private:
  std::vector<size_t> known_, learning_;
  std::vector<bool> last_;  // by place
  size_t place_ = 0;
};

}  // namespace cistron::nn
