// AdamW and the quantiser of weights in one pass over them: a block of threads updates a tile of 128 x 128, which shares a scale
// (groups of 128), keeps it in shared memory, and encodes both copies from there. So 30 bytes are moved an element, where the
// quantiser by itself (`mxfp8_quantize.cuh`, the same bytes) reads the master again: 34.
#include "cistron/cuda/optim/adamw_unit.cuh"
#include "cistron/cuda/optim/mxfp8_adamw.h"
#include "cistron/cuda/optim/tensor_list.cuh"
#include "cistron/cuda/quant/mxfp8_quantize.cuh"

namespace cistron::cuda {
namespace {

using namespace optim;  // NOLINT(google-build-using-namespace)

constexpr int kWarps = kQuantThreads / device::kWarp;
constexpr int kRows = kQuantTile / kWarps;  // of a warp
constexpr int kUnroll = 2;
static_assert(kQuantTile == ops::kStateBlock && kRows == sizeof(uint4));

struct QuantizedTensor {
  UpdatedTensor updated;
  QuantCopy row_wise, turned;
  int64_t elements;    // tiles
  uint32_t row_tiles;  // of one of its matrices
  int32_t first_block;
};
using QuantizedTensors = TensorList<QuantizedTensor, 150>;

struct Shared {
  union {
    Four weights[kQuantTile][device::kWarp];
    uint4 turned[kQuantTile][kWarps];  // of a column the bytes of each warp's rows
  };
  uint32_t amax[kWarps];
};

/// A warp's rows, which begin at `row0`, of the tile in column `block` of tiles; gives their largest magnitude.
template <class T>
__device__ __forceinline__ uint32_t update_rows(const UpdatedTensor& t, const Update& update, int64_t step, uint32_t row0,
                                                uint32_t block, Four (*weights)[device::kWarp]) {
  uint32_t most = 0;
#pragma unroll 1
  for (int first = 0; first < kRows; first += kUnroll) {
    static_assert(kUnroll == 2);
    const Place places[] = {{t, row0 + first, block, true}, {t, row0 + first + 1, block, true}};  // made twice, registers spill
    In<T> in[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) in[i] = load_unit<T>(t, places[i]);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const Four p = update_unit<T>(t, update, places[i], in[i], step);
      weights[first + i][device::lane_index()] = p;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) most = max(most, magnitude(p.at[e]));
    }
  }
  return __reduce_max_sync(~0U, most);
}

/// Four rows of four bytes to four columns.
__device__ __forceinline__ uint4 turned_words(const uint32_t (&row)[4]) {
  const uint32_t low01 = __byte_perm(row[0], row[1], 0x5140), high01 = __byte_perm(row[0], row[1], 0x7362);
  const uint32_t low23 = __byte_perm(row[2], row[3], 0x5140), high23 = __byte_perm(row[2], row[3], 0x7362);
  return {__byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632), __byte_perm(high01, high23, 0x5410),
          __byte_perm(high01, high23, 0x7632)};
}

/// Writes a warp's rows; gives their bytes by the lane's columns.
__device__ __forceinline__ void encode_rows(const Four (*weights)[device::kWarp], float inverse, uint8_t* to, int64_t pitch,
                                            uint4 (&columns)[kWidth]) {
  uint4 words[kRows / 4];  // of four rows each
#pragma unroll
  for (int four = 0; four < kRows / 4; ++four) {
    uint32_t row[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Four p = weights[4 * four + r][device::lane_index()];
      row[r] = e4m3_four(p.at[0] * inverse, p.at[1] * inverse, p.at[2] * inverse, p.at[3] * inverse);
      *reinterpret_cast<uint32_t*>(to + (4 * four + r) * pitch) = row[r];
    }
    words[four] = turned_words(row);
  }
  columns[0] = {words[0].x, words[1].x, words[2].x, words[3].x};
  columns[1] = {words[0].y, words[1].y, words[2].y, words[3].y};
  columns[2] = {words[0].z, words[1].z, words[2].z, words[3].z};
  columns[3] = {words[0].w, words[1].w, words[2].w, words[3].w};
}

/// Whole columns of the tile to memory. A column's pieces are permuted, so that eight lanes, whose columns are four apart, meet
/// different banks.
__device__ __forceinline__ void store_turned(Shared& shared, const uint4 (&columns)[kWidth], uint8_t* to, int64_t pitch) {
  const int warp = device::warp_index(), lane = device::lane_index();
#pragma unroll
  for (int j = 0; j < kWidth; ++j) shared.turned[kWidth * lane + j][(warp ^ lane) % kWarps] = columns[j];
  __syncthreads();
#pragma unroll
  for (int line = static_cast<int>(threadIdx.x) / kWarps; line < kQuantTile; line += kQuantThreads / kWarps) {
    const int piece = static_cast<int>(threadIdx.x) % kWarps;
    *reinterpret_cast<uint4*>(to + line * pitch + piece * kRows) = shared.turned[line][(piece ^ line / kWidth) % kWarps];
  }
}

template <class T>
__global__ void __launch_bounds__(kQuantThreads, 3)
    mxfp8_adamw_kernel(const __grid_constant__ QuantizedTensors tensors, Numbers numbers, const StepState* state) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (state->finite == 0) return;
  const QuantizedTensor& t = tensors.of_block(static_cast<int>(blockIdx.x));
  const uint32_t tile = blockIdx.x - t.first_block, row_tile = tile / t.updated.units_of_row;
  const uint32_t block = tile - row_tile * t.updated.units_of_row, matrix = row_tile / t.row_tiles;
  const int warp = device::warp_index();
  Four(*weights)[device::kWarp] = shared.weights + warp * kRows;

  const uint32_t row0 = row_tile * kQuantTile + warp * kRows;
  const Update update(numbers, *state, t.updated.weight_decay);
  uint32_t most = update_rows<T>(t.updated, update, state->step, row0, block, weights);
  if (device::lane_index() == 0) shared.amax[warp] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = max(most, shared.amax[w]);
  const uint8_t scale = ops::e8m0_from_amax(most);
  const uint32_t turned_row = matrix * t.updated.units_of_row + block, turned_block = row_tile - matrix * t.row_tiles;
  if (threadIdx.x == 0) {
    t.row_wise.scales[tile] = scale;
    t.turned.scales[int64_t{turned_row} * t.turned.scale_pitch + turned_block] = scale;
  }
  uint4 columns[kWidth];
  encode_rows(weights, ops::e8m0_inverse(scale),
              t.row_wise.elements + row0 * t.row_wise.pitch + block * kQuantTile + device::lane_index() * kWidth,
              t.row_wise.pitch, columns);
  __syncthreads();
  store_turned(shared, columns, t.turned.elements + int64_t{turned_row} * kQuantTile * t.turned.pitch + turned_block * kQuantTile,
               t.turned.pitch);
}

QuantizedTensor quantized_tensor(const ops::AdamWTensor& t) {
  const UpdatedTensor updated = updated_tensor(t);
  const int64_t rows = t.mx.rows.rows(), section_rows = rows / t.mx.rows.sections;
  CISTRON_CHECK(updated.wide && section_rows % kQuantTile == 0 && updated.width % kQuantTile == 0,
                "[adamw] MXFP8 of {} in {} sections: multiples of 128 wanted", to_string(t.master.shape()), t.mx.rows.sections);
  return {.updated = updated,
          .row_wise = quant_copy(t.mx.rows),
          .turned = quant_copy(t.mx.columns),
          .elements = updated.elements / kQuantTile,
          .row_tiles = narrow<uint32_t>(rows / kQuantTile),
          .first_block = 0};
}

template <class T>
void update_all(const Context& ctx, const ops::AdamW& args, DType moments) {
  std::vector<QuantizedTensor> tensors;
  for (const ops::AdamWTensor& t : args.tensors)
    if (quantized_in_update(t) && t.m.dtype() == moments) tensors.push_back(quantized_tensor(t));
  const Numbers numbers{args.beta1, args.beta2, args.eps};
  for_tensor_lists<QuantizedTensors>(std::span<const QuantizedTensor>(tensors), 1, [&](const auto& list, uint32_t blocks) {
    constexpr int kBytes = sizeof(Shared);
    CISTRON_CUDA_CHECK(cudaFuncSetAttribute(mxfp8_adamw_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    mxfp8_adamw_kernel<T><<<blocks, kQuantThreads, kBytes, stream(ctx)>>>(list, numbers, args.state);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void mxfp8_adamw(Context& ctx, const ops::AdamW& args) {
  update_all<float>(ctx, args, DType::kF32);
  update_all<__nv_bfloat16>(ctx, args, DType::kBF16);
  update_all<uint8_t>(ctx, args, DType::kU8);
}

}  // namespace cistron::cuda
