#pragma once
// cuBLASLt's products as peer and oracle: dense bf16, and e4m3 with f32 scales of 1 x 128 and 128 x 128; expert by expert, since
// it has no grouped form for these. A product's plan is made once; `run` only launches.
#include <cublasLt.h>

#include <memory>
#include <vector>

#include "cistron/ops/mxfp8.h"
#include "tests/cuda/device_tensor.cuh"

#define CISTRON_CUBLASLT_CHECK(call)                                                                             \
  do {                                                                                                           \
    const cublasStatus_t lt_status_ = (call);                                                                    \
    CISTRON_CHECK(lt_status_ == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {}: {}", #call, static_cast<int>(lt_status_)); \
  } while (false)

namespace cistron::bench {

/// A handle and its workspace.
class CublasLt {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

  CublasLt() {
    cublasLtHandle_t handle = nullptr;
    CISTRON_CUBLASLT_CHECK(cublasLtCreate(&handle));
    handle_ = {handle, cublasLtDestroy};
  }
  [[nodiscard]] cublasLtHandle_t handle() const { return handle_.get(); }
  [[nodiscard]] void* workspace() const { return workspace_.get().raw(); }

 private:
  std::shared_ptr<cublasLtContext> handle_;
  test::DeviceTensor workspace_{{static_cast<int64_t>(kWorkspaceBytes)}, DType::kU8};
};

/// out [m, n] = a [m, k] b^T, row-major bf16, b [n, k] or, `across`, [k, n]; a as [k, m] with `a_across`. `accumulate`: out in
/// f32, added to.
struct LtProduct {
  const void* a;
  const void* b;
  void* out;
  int64_t m, n, k;
  bool a_across = false, across = false;
  bool f32 = false, accumulate = false;
  const float* a_scales = nullptr;  // e4m3: [k / 128, m rounded up to 4]
  const float* b_scales = nullptr;  // [n / 128, k / 128 rounded up to 4]
};

class LtPlan {
 public:
  LtPlan(const CublasLt& lt, const LtProduct& p) : lt_(&lt), p_(p) {
    const bool scaled = p.a_scales != nullptr;
    const cudaDataType_t type = scaled ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    // cuBLAS counts by columns: out^T [n, m] = b^T^T a^T.
    CISTRON_CUBLASLT_CHECK(cublasLtMatmulDescCreate(&op_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.across ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_across ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (scaled) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F});
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F});
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scales);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scales);
    }
    a_ = layout(type, p.across ? p.n : p.k, p.across ? p.k : p.n);
    b_ = layout(type, p.a_across ? p.m : p.k, p.a_across ? p.k : p.m);
    out_ = layout(p.f32 ? CUDA_R_32F : CUDA_R_16BF, p.n, p.m);
    choose();
  }

  void run(cudaStream_t stream) const {
    const float one = 1;
    const float beta = p_.accumulate ? 1 : 0;
    CISTRON_CUBLASLT_CHECK(cublasLtMatmul(lt_->handle(), op_, &one, p_.b, a_, p_.a, b_, &beta, p_.out, out_, p_.out, out_,
                                          &found_.algo, lt_->workspace(), CublasLt::kWorkspaceBytes, stream));
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    CISTRON_CUBLASLT_CHECK(cublasLtMatmulDescSetAttribute(op_, attribute, &value, sizeof value));
  }
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    CISTRON_CUBLASLT_CHECK(
        cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows));
    return made;
  }
  void choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    CISTRON_CUBLASLT_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const size_t bytes = CublasLt::kWorkspaceBytes;
    CISTRON_CUBLASLT_CHECK(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(lt_->handle(), op_, a_, b_, out_, out_, preference, 1, &found_, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    CISTRON_CHECK(status == CUBLAS_STATUS_SUCCESS && count > 0, "cuBLASLt has no kernel for {} x {} x {}: {}", p_.m, p_.n, p_.k,
                  static_cast<int>(status));
  }

  // Plans live as long as the program: their descriptors are never given back.
  const CublasLt* lt_;
  LtProduct p_;
  cublasLtMatmulDesc_t op_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t found_{};
};

/// f32 copies of E8M0 scales as cuBLASLt wants them: each expert's rows by themselves, K innermost for weights.
struct BlockScales {
  std::vector<test::DeviceTensor> rows, weights;

  BlockScales(const ops::MxOperand& x, const ops::MxOperand& w, const test::TestGroups& g) {
    const auto xs = test::bytes_of(x.scales);
    const auto ws = test::bytes_of(w.scales);
    const int64_t groups = w.num_groups();
    const int64_t padded = round_up(groups, 4);
    for (size_t e = 0; e < g.counts.size(); ++e) {
      const int64_t count = round_up(g.counts[e], 4);
      std::vector<float> r(static_cast<size_t>(std::max<int64_t>(groups * count, 1)));
      for (int64_t k = 0; k < groups; ++k)
        for (int64_t i = 0; i < count; ++i) r[k * count + i] = decoded(xs[k * x.scales.dim(1) + g.starts[e] + i]);
      std::vector<float> v(static_cast<size_t>(w.row_blocks() * padded));
      for (int64_t b = 0; b < w.row_blocks(); ++b)
        for (int64_t k = 0; k < groups; ++k) v[b * padded + k] = decoded(ws[(e * w.row_blocks() + b) * groups + k]);
      rows.emplace_back(r);
      weights.emplace_back(v);
    }
  }
  static float decoded(uint8_t b) { return std::ldexp(1.0F, int{b} - 127); }
};

/// Each expert's product of `mxfp8_grouped_gemm`; its rows rounded up to 4, within the segment.
inline std::vector<LtPlan> expert_products(const CublasLt& lt, const ops::MxOperand& x, const ops::MxOperand& w,
                                           const BlockScales& scales, const Tensor& out, const test::TestGroups& g) {
  std::vector<LtPlan> products;
  for (size_t e = 0; e < g.counts.size(); ++e) {
    if (g.counts[e] == 0) continue;
    const auto at = static_cast<int64_t>(e);
    products.emplace_back(lt, LtProduct{.a = x.elements.rows(g.starts[e], g.counts[e]).raw(),
                                        .b = w.elements.data<uint8_t>() + at * w.rows() * w.depth(),
                                        .out = out.rows(g.starts[e], g.counts[e]).raw(),
                                        .m = round_up(g.counts[e], 4),
                                        .n = w.rows(),
                                        .k = w.depth(),
                                        .a_scales = scales.rows[e].get().data<float>(),
                                        .b_scales = scales.weights[e].get().data<float>()});
  }
  return products;
}

}  // namespace cistron::bench
