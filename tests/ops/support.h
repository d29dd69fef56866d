#pragma once
// What the operations' tests share: contexts, random and poisoned tensors, comparisons that name the worst element.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/core/error.h"
#include "cistron/cpu/ref/matrix.h"

namespace cistron::test {

/// A CPU context with its own threads and a growing arena.
class CpuContext : public Context {
 public:
  explicit CpuContext(int threads = 1, Precision wanted = Precision::kF32);
  CpuContext(const CpuContext&) = delete;
  CpuContext& operator=(const CpuContext&) = delete;

 private:
  ThreadPool threads_;
};

/// Shapes without bytes.
Context meta_context(Precision precision = Precision::kF32);

/// scale x standard normals, rounded to `dtype` (f32, bf16 or f64). On meta: only the shape.
Tensor random_tensor(const Context& ctx, const Shape& shape, DType dtype, uint64_t seed, double scale = 1.0);
/// i32 in [0, bound).
Tensor random_ints(const Context& ctx, const Shape& shape, uint64_t seed, int32_t bound);
/// These values in `dtype`, any of ours.
Tensor tensor_of(const Context& ctx, const Shape& shape, DType dtype, const std::vector<double>& values);

/// Fills with NaN (integers: with the largest value), so that an element that nobody wrote shows.
void poison(const Tensor& tensor);
/// A poisoned tensor, for outputs.
Tensor poisoned(const Context& ctx, const Shape& shape, DType dtype);
Tensor copy_of(const Context& ctx, const Tensor& tensor);

std::vector<double> to_double(const Tensor& tensor);
/// Rank 2; higher ranks keep their last dim as columns, rank 1 becomes one row.
cpu::ref::Matrix<double> to_matrix(const Tensor& tensor);

/// Half the spacing of numbers just above 1: the largest relative error of one rounding.
double unit_roundoff(DType dtype);

/// |got - want| <= bound for each element; NaN never passes; equal infinities do. The worst element is printed.
testing::AssertionResult within(const std::vector<double>& got, const std::vector<double>& want,
                                const std::vector<double>& bound);
testing::AssertionResult within(const Tensor& got, const std::vector<double>& want, const std::vector<double>& bound);
testing::AssertionResult within(const Tensor& got, const std::vector<double>& want, double bound);
/// The same bytes, and shape and dtype.
testing::AssertionResult same_bits(const Tensor& got, const Tensor& want);

/// What `run` gives has the same bits with 1, 2 and 5 threads.
testing::AssertionResult same_for_any_threads(const std::function<std::vector<Tensor>(Context&)>& run);

/// (f(x + h e_i) - f(x - h e_i)) / 2h for each i: the gradient of f, to O(h^2).
std::vector<double> numeric_gradient(const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
                                     double h = 1e-5);

/// What the error that `f` throws says, or "" when it throws none.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace cistron::test
