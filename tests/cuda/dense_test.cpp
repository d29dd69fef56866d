// Each kernel that can run a dense product, whichever the dispatcher would have taken: against float64, at the sizes it says it
// takes.
#include "cistron/cuda/gemm/dense.h"

#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/matmul.h"
#include "tests/cuda/dense_support.h"

namespace cistron::test {
namespace {

using cuda::DenseOperand, cuda::DenseProduct;

struct Kernel {
  const char* name;
  bool (*takes)(const DenseProduct&);
  void (*run)(Context&, const DenseProduct&);
};

constexpr Kernel kKernels[] = {{"simt", [](const DenseProduct&) { return true; }, cuda::simt_dense},
                               {"skinny", cuda::skinny_takes, cuda::skinny_dense},
                               {"portable", cuda::portable::dense_takes, cuda::portable::dense},
                               {"sm90", cuda::sm90::dense_takes, cuda::sm90::dense}};

class CudaDenseKernels : public DenseOnCard {
 protected:
  /// Of `a` and `b` as they lie: lines along the contraction or across it.
  void expect_of_all(const Tensor& a, bool a_along, const Tensor& b, bool b_along, DType out_dtype,
                     const cpu::ref::Matrix<double>& want, const cpu::ref::Matrix<double>& magnitude) {
    const int64_t m = a.dim(a_along ? 0 : 1), n = b.dim(b_along ? 0 : 1), k = a.dim(a_along ? 1 : 0);
    const Tensor workspace = ops::dense_workspace(cuda);
    const auto product = [&](const Tensor& out) {
      return DenseProduct{.in = c.in,
                          .a = {.data = a.raw(), .pitch = a.dim(1), .along = a_along},
                          .b = {.data = b.raw(), .pitch = b.dim(1), .along = b_along},
                          .out = out.raw(),
                          .out_dtype = out_dtype,
                          .out_pitch = n,
                          .m = m,
                          .n = n,
                          .k = k,
                          .accumulate = c.accumulate,
                          .workspace = workspace.raw()};
    };
    const Tensor somewhere = cuda.empty({m, n}, out_dtype);
    for (const Kernel& kernel : kKernels) {
      if (!kernel.takes(product(somewhere))) continue;
      if (kernel.run == cuda::sm90::dense && cuda::compute_capability(cuda) != 90) continue;
      SCOPED_TRACE(kernel.name);
      expect_product({m, n}, out_dtype, [&](const Tensor& out) { kernel.run(cuda, product(out)); }, want, magnitude, k);
    }
  }
};

TEST_P(CudaDenseKernels, Forward) {
  const auto x2 = to_matrix(x), w2 = to_matrix(w);
  expect_of_all(to_device(cuda, x), true, to_device(cuda, w), true, c.out, cpu::ref::matmul_forward(x2, w2),
                cpu::ref::matmul_forward(absolute(x2), absolute(w2)));
}

TEST_P(CudaDenseKernels, Dgrad) {
  const auto dy2 = to_matrix(dy), w2 = to_matrix(w);
  expect_of_all(to_device(cuda, dy), true, to_device(cuda, w), false, c.out, cpu::ref::matmul_dgrad(dy2, w2),
                cpu::ref::matmul_dgrad(absolute(dy2), absolute(w2)));
}

TEST_P(CudaDenseKernels, Wgrad) {
  const auto dy2 = to_matrix(dy), x2 = to_matrix(x);
  expect_of_all(to_device(cuda, dy), false, to_device(cuda, x), false, DType::kF32, cpu::ref::matmul_wgrad(dy2, x2),
                cpu::ref::matmul_wgrad(absolute(dy2), absolute(x2)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaDenseKernels, testing::ValuesIn(dense_cases()));

}  // namespace
}  // namespace cistron::test
