#include "cistron/cuda/runtime/tensor_map.h"

#include <cudaTypedefs.h>

#include "cistron/core/checked.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

/// The driver's function, through the runtime: nothing of ours links libcuda.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CISTRON_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    CISTRON_CHECK(result == cudaDriverEntryPointSuccess,
                  "[tensor_map] the driver has no tensor maps: install one for CUDA 12 or later");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kU8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      CISTRON_CHECK(false, "[tensor_map] {} has no tensor map here", name_of(dtype));
  }
  return {};
}

}  // namespace

CUtensorMap make_tensor_map(const TensorMapShape& s) {
  const int64_t width = size_of(s.dtype);
  const cuuint64_t dims[3] = {narrow<cuuint64_t>(s.columns), narrow<cuuint64_t>(s.rows), narrow<cuuint64_t>(s.outermost)};
  const int64_t row_pitch = s.row_pitch > 0 ? s.row_pitch : s.columns;
  const int64_t outer_pitch = s.outer_pitch > 0 ? s.outer_pitch : checked_mul(s.rows, s.columns);
  const cuuint64_t strides[2] = {narrow<cuuint64_t>(row_pitch * width), narrow<cuuint64_t>(outer_pitch * width)};
  const cuuint32_t box[3] = {narrow<cuuint32_t>(128 / width), narrow<cuuint32_t>(s.box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  CISTRON_CHECK(strides[0] % 16 == 0 && strides[1] % 16 == 0,
                "[tensor_map] rows of {} bytes, parts of {}: multiples of 16 wanted", strides[0], strides[1]);
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type_of(s.dtype), 3, s.data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CISTRON_CHECK(result == CUDA_SUCCESS, "[tensor_map] [{}, {}, {}] {}: error {} from the driver", s.outermost, s.rows, s.columns,
                name_of(s.dtype), static_cast<int>(result));
  return map;
}

}  // namespace cistron::cuda
