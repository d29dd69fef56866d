#pragma once
// What `cistron bench` compares with: what the card can do, and where a step's time goes.
#include <string>
#include <vector>

#include "cistron/ops/timer.h"

namespace cistron::apps {

/// Measured in this process on random data, as medians.
struct Ceilings {
  double tflops = 0.0;                ///< D: a dense bf16 product of 8192^3
  double gigabytes_per_second = 0.0;  ///< C: a copy on the device, counting what is read and what is written
};
Ceilings measure_ceilings(const Device& device);

/// All calls of one operation.
struct ProfileRow {
  std::string op;
  int64_t calls = 0;
  double milliseconds = 0.0;
  double share = 0.0;  ///< of the whole step
  double ratio = 0.0;  ///< the time that D or C alone would take, over the time it took; 0: no ceiling is known
  char ceiling = ' ';  ///< 'D' or 'C', whichever takes longer
};

/// The longest first. `pairs`: of tokens that attention multiplies in one layer.
std::vector<ProfileRow> summarise(const std::vector<ops::TimedOperation>& operations, const Ceilings& ceilings, double pairs);
void print_profile(const std::vector<ProfileRow>& rows, bool json);

}  // namespace cistron::apps
