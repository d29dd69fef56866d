#pragma once
// What the backward kernels by tensor cores share: probabilities and their gradients in registers, and where the operands lie.
//   scores = rows1 columns1^T, dp = rows2 columns2^T, sums2 += p columns2 (keys only), sums1 += ds columns1
// Rows are keys with queries as columns (dk, dv), or queries with keys as columns (dq).
#include "cistron/cuda/attention/flash_mma.cuh"

namespace cistron::cuda::flash {

/// lse and delta of a lane's scores: by column from shared memory, or by row from registers.
struct PerColumn {
  const float* values;  // lse [kColumns], then delta
  int delta_at;
  __device__ __forceinline__ float lse(int, int column) const { return values[column]; }
  __device__ __forceinline__ float delta(int, int column) const { return values[delta_at + column]; }
};
struct PerRow {
  float lse_of[2], delta_of[2];
  __device__ __forceinline__ float lse(int half, int) const { return lse_of[half]; }
  __device__ __forceinline__ float delta(int half, int) const { return delta_of[half]; }
};

/// scores -> p, zero where a row does not meet a column.
template <int kN, class Statistics>
__device__ __forceinline__ void probabilities(float (&scores)[1][kN][4], const Statistics& of, float scale, bool whole,
                                              const Range* row, int first) {
  const int lane = device::lane_index();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Range range = row[half * 8 + lane / 4];
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int local = n * 8 + lane % 4 * 2 + i;
        float& s = scores[0][n][2 * half + i];
        s = exp2_fast(fmaf(s, scale, -kLog2E * of.lse(half, local)));
        if (!whole && (first + local < range.begin || first + local >= range.end)) s = 0;
      }
  }
}

/// dp -> ds
template <int kN, class Statistics>
__device__ __forceinline__ void score_gradients(float (&dp)[1][kN][4], const float (&p)[1][kN][4], const Statistics& of) {
  const int lane = device::lane_index();
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[0][n][i] = p[0][n][i] * (dp[0][n][i] - of.delta(i / 2, n * 8 + lane % 4 * 2 + i % 2));
}

/// Where the operands of a block lie: rows of its own head, columns of the head at hand.
template <bool kByKey>
struct Operands {
  const BackwardProblem<Bf16>& p;
  int head;  // key/value head, or query head

  [[nodiscard]] __device__ HeadRows<const Bf16> rows1() const { return kByKey ? at(p.in.k, head) : at(p.in.q, head); }
  [[nodiscard]] __device__ HeadRows<const Bf16> rows2() const { return kByKey ? at(p.in.v, head) : at(p.dout, head); }
  /// Head number `i` of those that the columns come from.
  [[nodiscard]] __device__ int column_heads() const { return kByKey ? p.heads.group() : 1; }
  [[nodiscard]] __device__ int column_head(int i) const { return kByKey ? head * p.heads.group() + i : head / p.heads.group(); }
  [[nodiscard]] __device__ HeadRows<const Bf16> columns1(int i) const { return at(kByKey ? p.in.q : p.in.k, column_head(i)); }
  [[nodiscard]] __device__ HeadRows<const Bf16> columns2(int i) const { return at(kByKey ? p.dout : p.in.v, column_head(i)); }

 private:
  [[nodiscard]] __device__ HeadRows<const Bf16> at(const HeadRows<const Bf16>& all, int h) const {
    return {all.head(h, p.heads.dim), all.pitch};
  }
};

}  // namespace cistron::cuda::flash
