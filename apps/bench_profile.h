#pragma once
// What `cistron bench` compares with: what the device can do, and where a step's time goes.
#include <string>
#include <vector>

#include "cistron/ops/timer.h"

namespace cistron::apps {

double median_of(std::vector<double> values);

/// f32 or bf16 in [middle - width / 2, middle + width / 2): a million random values, over and over, more than any tile or cache
/// line would notice.
void fill_random(Context& ctx, const Tensor& out, uint64_t stream, double middle = 0.0, double width = 1.0);

/// A dense product of side^3 on random data, in the context's precision.
class DenseProduct {
 public:
  DenseProduct(const Context& ctx, int64_t side);
  /// Queues it.
  void run();
  [[nodiscard]] double tflops(double milliseconds) const;

 private:
  Context ctx_;
  int64_t side_;
  Tensor x_, w_, out_;
};

/// Measured in this process on random data, as medians.
struct Ceilings {
  double tflops = 0.0;                ///< D: a dense product of 8192^3 in bf16; on a CPU of 2048^3 in the recipe's dtype
  double gigabytes_per_second = 0.0;  ///< C: a copy of 1 GiB, counting what is read and what is written; on a CPU of 256 MiB
};
/// `pool`: of a CPU, as the step will have it.
Ceilings measure_ceilings(const Device& device, Precision precision, ThreadPool* pool);

/// All calls of one operation.
struct ProfileRow {
  std::string op;
  int64_t calls = 0;
  double milliseconds = 0.0;
  double share = 0.0;                 ///< of the sum
  double tflops = 0.0;                ///< of its products, where D is its ceiling
  double gigabytes_per_second = 0.0;  ///< of its operands, where C is
  double ratio = 0.0;                 ///< the time that D or C alone would take, over the time it took; 0: the cost is not known
  char ceiling = ' ';                 ///< 'D' or 'C', whichever takes longer
};

/// The longest first. `steps`: of one shape, whose operations' medians count. `pairs`: of tokens that attention multiplies in one
/// layer.
std::vector<ProfileRow> summarise(const std::vector<std::vector<ops::TimedOperation>>& steps, const Ceilings& ceilings,
                                  double pairs);
void print_profile(const std::vector<ProfileRow>& rows, bool json);

}  // namespace cistron::apps
