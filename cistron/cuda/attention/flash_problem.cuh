#pragma once
// What the attention kernels are told, and which columns a row meets.
#include <cstdint>

#include "cistron/core/checked.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/attention.h"

namespace cistron::cuda::flash {

/// Heads side by side in rows of `pitch` elements.
template <class T>
struct HeadRows {
  T* data;
  int64_t pitch;
  [[nodiscard]] __device__ T* head(int h, int dim) const { return data + h * dim; }
};

struct Sequences {
  const int32_t* ends;  // [count + 1]
  int count;
  int tokens;
  bool causal;
};

struct Heads {
  int count, kv_count, dim;
  [[nodiscard]] __host__ __device__ int group() const { return count / kv_count; }
};

/// Columns [begin, end) that a row meets.
struct Range {
  int begin, end;
};

/// The sequence that holds `token`; behind the last one an empty range there, so that begins and ends never fall.
__device__ __forceinline__ Range sequence_of(const Sequences& s, int token) {
  int low = 0;
  int high = s.count;
  if (const int all = s.ends[high]; token >= all) return {all, all};
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (__ldg(s.ends + middle) <= token ? low : high) = middle;
  }
  return {__ldg(s.ends + low), __ldg(s.ends + low + 1)};
}

/// Keys that a query meets, or, kByKey, queries that a key meets.
template <bool kByKey>
__device__ __forceinline__ Range columns_of(const Sequences& s, int token) {
  Range range = sequence_of(s, token);
  if (!s.causal || range.begin == range.end) return range;
  (kByKey ? range.begin : range.end) = kByKey ? token : token + 1;
  return range;
}

/// Parts of a [T, (heads + 2 kv_heads) D] tensor.
template <class T>
struct QkvRows {
  HeadRows<T> q, k, v;
};
template <class T>
QkvRows<T> split_qkv(const Tensor& qkv, const ops::AttentionShape& s) {
  const auto at = [&](int64_t head) { return HeadRows<T>{static_cast<T*>(qkv.raw()) + head * s.head_dim, qkv.dim(1)}; };
  return {at(0), at(s.num_heads), at(s.num_heads + s.num_kv_heads)};
}

template <class Args>
Sequences sequences_of(const Args& args) {
  return {.ends = args.cu_seqlens.template data<int32_t>(),
          .count = narrow<int>(args.cu_seqlens.dim(0) - 1),
          .tokens = narrow<int>(args.qkv.dim(0)),
          .causal = args.causal};
}

inline Heads heads_of(const ops::AttentionShape& s) {
  return {narrow<int>(s.num_heads), narrow<int>(s.num_kv_heads), narrow<int>(s.head_dim)};
}

/// What the forward kernels are told.
template <class T>
struct ForwardProblem {
  Sequences sequences;
  Heads heads;
  QkvRows<const T> in;
  HeadRows<T> out;
  float* lse;  // [heads, tokens]
  float scale;

  explicit ForwardProblem(const ops::AttentionForward& args)
      : sequences(sequences_of(args)),
        heads(heads_of(args.shape)),
        in(split_qkv<const T>(args.qkv, args.shape)),
        out{static_cast<T*>(args.out.raw()), args.out.dim(1)},
        lse(args.lse.data<float>()),
        scale(args.scale) {}
};

/// What the backward kernels are told. Rows are queries (for dq) or keys (for dk and dv), columns the other.
template <class T>
struct BackwardProblem {
  Sequences sequences;
  Heads heads;
  QkvRows<const T> in;
  HeadRows<const T> dout;
  QkvRows<T> grad;
  const float* lse;    // [heads, tokens]
  const float* delta;  // [heads, tokens]
  float scale;

  explicit BackwardProblem(const ops::AttentionBackward& args)
      : sequences(sequences_of(args)),
        heads(heads_of(args.shape)),
        in(split_qkv<const T>(args.qkv, args.shape)),
        dout{static_cast<const T*>(args.dout.raw()), args.dout.dim(1)},
        grad(split_qkv<T>(args.dqkv, args.shape)),
        lse(args.lse.data<float>()),
        delta(args.delta.data<float>()),
        scale(args.scale) {}
};

/// Lets a kernel use `bytes` of shared memory, and launches it.
template <class Problem>
void launch(Context& ctx, void (*kernel)(Problem), dim3 blocks, int threads, int bytes, const Problem& problem) {
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<blocks, threads, static_cast<size_t>(bytes), stream(ctx)>>>(problem);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::flash
