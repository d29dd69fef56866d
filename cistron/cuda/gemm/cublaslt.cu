// No device code; `.cu` since it needs nvcc's build.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/cublaslt.h"
#include "cistron/cuda/runtime/library.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/matmul.h"

namespace cistron::cuda::cublaslt {
namespace {

/// The library's functions, by the names and types of its header.
struct Functions {
  Library library{"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)};
  std::string problem = library.problem();

#define CISTRON_FUNCTION(name) decltype(&cublasLt##name) name = find<decltype(&cublasLt##name)>("cublasLt" #name)
  CISTRON_FUNCTION(Create);
  CISTRON_FUNCTION(Matmul);
  CISTRON_FUNCTION(MatmulDescInit_internal);
  CISTRON_FUNCTION(MatmulDescSetAttribute);
  CISTRON_FUNCTION(MatrixLayoutInit_internal);
  CISTRON_FUNCTION(MatmulPreferenceInit_internal);
  CISTRON_FUNCTION(MatmulPreferenceSetAttribute);
  CISTRON_FUNCTION(MatmulAlgoGetHeuristic);
#undef CISTRON_FUNCTION

 private:
  template <class F>
  F find(const char* name) {
    void* const function = library.function(name);
    if (function == nullptr && problem.empty()) problem = fmt::format("libcublasLt has no {}", name);
    return reinterpret_cast<F>(function);
  }
};

const Functions& functions() {
  static const Functions found;
  return found;
}

void check(cublasStatus_t status, const char* what) {
  CISTRON_CHECK(status == CUBLAS_STATUS_SUCCESS, "[cublasLt] {}: status {}", what, static_cast<int>(status));
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

/// What a plan depends on.
struct Key {
  int device, sm_budget;
  DType in, out;
  bool a_along, b_along, accumulate;
  int64_t a_pitch, b_pitch, out_pitch, m, n, k;
  uint64_t a_alignment, b_alignment, out_alignment;
  auto operator<=>(const Key&) const = default;
};

uint64_t alignment(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return std::min<uint64_t>(256, address & (~address + 1));
}

Key key_of(const Context& ctx, const DenseProduct& p) {
  return {ctx.device.index,    ctx.sm_budget,   p.in,        p.out_dtype, p.a.along, p.b.along, p.accumulate,
          p.a.pitch,           p.b.pitch,       p.out_pitch, p.m,         p.n,       p.k,       alignment(p.a.data),
          alignment(p.b.data), alignment(p.out)};
}

/// Row-major out = A B^T is column-major out^T = B A^T.
struct Plan {
  cublasLtMatmulDescOpaque_t description{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, out{};
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

void set_operation(Plan& plan, cublasLtMatmulDescAttributes_t which, bool turned) {
  const cublasOperation_t operation = turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(functions().MatmulDescSetAttribute(&plan.description, which, &operation, sizeof(operation)), "operation");
}

/// Lines along the contraction are the columns of a k x lines matrix.
void set_layout(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, const DenseOperand& operand, int64_t lines, int64_t k) {
  const auto rows = static_cast<uint64_t>(operand.along ? k : lines);
  const auto columns = static_cast<uint64_t>(operand.along ? lines : k);
  check(functions().MatrixLayoutInit_internal(&layout, sizeof(layout), type_of(dtype), rows, columns, operand.pitch), "layout");
}

template <class T>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t which, T value) {
  check(functions().MatmulPreferenceSetAttribute(&preference, which, &value, sizeof(value)), "preference");
}

Plan make_plan(cublasLtHandle_t handle, const DenseProduct& p, const Key& key) {
  Plan plan;
  check(functions().MatmulDescInit_internal(&plan.description, sizeof(plan.description), CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "description");
  if (key.sm_budget > 0)
    check(functions().MatmulDescSetAttribute(&plan.description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &key.sm_budget,
                                             sizeof(key.sm_budget)),
          "multiprocessors");
  set_operation(plan, CUBLASLT_MATMUL_DESC_TRANSA, p.b.along);
  set_operation(plan, CUBLASLT_MATMUL_DESC_TRANSB, !p.a.along);
  set_layout(plan.a, p.in, p.a, p.m, p.k);
  set_layout(plan.b, p.in, p.b, p.n, p.k);
  set_layout(plan.out, p.out_dtype, {.pitch = p.out_pitch, .along = true}, p.m, p.n);
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(functions().MatmulPreferenceInit_internal(&preference, sizeof(preference)), "preference");
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(ops::kDenseWorkspaceBytes));
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.b_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.a_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.out_alignment));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.out_alignment));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const auto status = functions().MatmulAlgoGetHeuristic(handle, &plan.description, &plan.b, &plan.a, &plan.out, &plan.out,
                                                         &preference, 1, &result, &count);
  plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = result.algo;
  return plan;
}

/// Plans by shape, and a handle for each card: what they give depends on nothing else, so that sharing them is harmless.
class Plans {
 public:
  struct Found {
    cublasLtHandle_t handle;
    Plan plan;
  };
  Found find(const Context& ctx, const DenseProduct& p) {
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = handles_[ctx.device.index];
    if (handle == nullptr) check(functions().Create(&handle), "create");
    const Key key = key_of(ctx, p);
    const auto known = plans_.find(key);
    return {handle, known != plans_.end() ? known->second : plans_.emplace(key, make_plan(handle, p, key)).first->second};
  }

 private:
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, Plan> plans_;
};

Plans& plans() {
  static Plans all;
  return all;
}

}  // namespace

const std::string& problem() { return functions().problem; }

bool dense(Context& ctx, const DenseProduct& p) {
  if (!problem().empty()) return false;
  auto [handle, plan] = plans().find(ctx, p);
  if (!plan.found) return false;
  const float one = 1;
  const float before = p.accumulate ? 1.0F : 0.0F;
  check(
      functions().Matmul(handle, &plan.description, &one, p.b.data, &plan.b, p.a.data, &plan.a, &before, p.out, &plan.out, p.out,
                         &plan.out, &plan.algorithm, p.workspace, static_cast<size_t>(ops::kDenseWorkspaceBytes), stream(ctx)),
      "matmul");
  return true;
}

}  // namespace cistron::cuda::cublaslt
