#pragma once

namespace cistron {

/// What an operation cannot do without.
struct Cost {
  double flops = 0.0;       ///< of its products
  double pair_flops = 0.0;  ///< of attention: for each pair of a token and one that it sees, which only the data tell
  double bytes = 0.0;       ///< each operand read once, each result written once
};

/// Told of every operation that runs, where somebody measures; see ops/timer.h.
class OperationTimer {
 public:
  virtual ~OperationTimer() = default;
  virtual void begin() = 0;
  virtual void end(const char* op, const Cost& cost) = 0;
};

}  // namespace cistron
