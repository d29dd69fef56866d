#pragma once
// The three grouped products as one: out[m, n] (+)= sum over k of A(m, k) B(n, k) for each expert, with operands that lie along k
// or across it, and rows or the contraction cut by expert.
//   forward: A = x [rows, K] along,   B = w[e] [N, K] along     rows by expert
//   dgrad:   A = dy [rows, N] along,  B = w[e] [N, K] across    rows by expert
//   wgrad:   A = dy [rows, N] across, B = x [rows, K] across    contraction by expert
//            or both along, for transposed copies dy [N, R], x [K, R]
#include <cstdint>

#include "cistron/cuda/gemm/portable_schedule.h"

namespace cistron::cuda {

struct PortableProblem {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;
  const int32_t* starts = nullptr;  // null: one group from row 0 on, of dense_rows rows
  const int32_t* counts = nullptr;
  int32_t experts = 0;
  int32_t dense_rows = 0;
  int64_t n = 0;        // columns of out
  int64_t k = 0;        // contraction, where rows are cut by expert
  int64_t m = 0;        // rows of out, where the contraction is
  int64_t a_pitch = 0;  // elements from one line of A to the next
  int64_t b_pitch = 0;
  int64_t b_expert = 0;  // elements from one expert's B to the next
  bool by_contraction = false;
  bool accumulate = false;
};

__device__ __forceinline__ int32_t rows_of(const PortableProblem& p, int32_t expert) {
  return p.counts == nullptr ? p.dense_rows : __ldg(p.counts + expert);
}

/// One tile's part: pointers at its first element, how much of it exists.
template <class T>
struct PortableTile {
  const T* a;
  const T* b;
  int64_t out;  // index of the tile's first element
  int32_t m, n;
  int32_t k;
};

/// The next tile of this block; false when there are no more. kAlong: the operand's lines run along the contraction.
template <class T, int kM, int kN, bool kAAlong, bool kBAlong>
__device__ __forceinline__ bool portable_tile(const PortableProblem& p, ExpertWalk& walk, int32_t index, PortableTile<T>& tile) {
  const auto n_tiles = static_cast<int32_t>((p.n + kN - 1) / kN);
  const auto m_tiles = [&](int32_t e) {
    const int32_t count = rows_of(p, e);
    if (!p.by_contraction) return (count + kM - 1) / kM;
    return count == 0 && p.accumulate ? 0 : static_cast<int32_t>((p.m + kM - 1) / kM);  // nothing to add
  };
  if (!walk.advance(index, p.experts, [&](int32_t e) { return m_tiles(e) * n_tiles; })) return false;
  const int32_t e = walk.expert;
  const TilePlace at = place_of(index - walk.first, m_tiles(e), n_tiles);
  const int64_t m0 = static_cast<int64_t>(at.m) * kM;
  const int64_t n0 = static_cast<int64_t>(at.n) * kN;
  const int64_t start = p.starts == nullptr ? 0 : __ldg(p.starts + e);
  const int64_t count = rows_of(p, e);
  const int64_t row0 = p.by_contraction ? m0 : start + m0;  // of A
  const int64_t k0 = p.by_contraction ? start : 0;
  tile.a = static_cast<const T*>(p.a) + (kAAlong ? row0 * p.a_pitch + k0 : k0 * p.a_pitch + row0);
  tile.b = static_cast<const T*>(p.b) + e * p.b_expert + (kBAlong ? n0 * p.b_pitch + k0 : k0 * p.b_pitch + n0);
  tile.out = (p.by_contraction ? e * p.m + m0 : row0) * p.n + n0;
  const int64_t rows = p.by_contraction ? p.m : count;
  tile.m = static_cast<int32_t>(rows - m0 < kM ? rows - m0 : kM);
  tile.n = static_cast<int32_t>(p.n - n0 < kN ? p.n - n0 : kN);
  // Transposed copies are zero up to the next multiple of 128, so that whole 16-byte pieces can be read.
  const int64_t depth = kAAlong ? (count + 127) / 128 * 128 : count;
  tile.k = static_cast<int32_t>(p.by_contraction ? depth : p.k);
  return true;
}

}  // namespace cistron::cuda
