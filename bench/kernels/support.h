#pragma once
// What the micro-benchmarks share: a context with all cores, and random operands. Results are checked by tests/ops.
#include <benchmark/benchmark.h>

#include "cistron/core/context.h"
#include "cistron/core/rng.h"
#include "cistron/ops/elementwise.h"

namespace cistron::bench {

class AllCores : public Context {
 public:
  explicit AllCores(Precision wanted = Precision::kF32) {
    arena = Arena::growing("bench", Device{}, host_memory());
    pool = &threads_;
    precision = wanted;
  }
  AllCores(const AllCores&) = delete;
  AllCores& operator=(const AllCores&) = delete;

 private:
  ThreadPool threads_;
};

/// Standard normals; f32 or bf16.
inline Tensor normals(Context& ctx, const Shape& shape, DType dtype) {
  const Tensor values = ctx.empty(shape, DType::kF32), out = ctx.empty(shape, dtype);
  const Rng rng(1, 0);
  uint64_t i = 0;
  for (float& x : values.span<float>()) x = static_cast<float>(rng.normal(i++));
  ops::cast(ctx, {values, out});
  return out;
}

/// In [0, bound).
inline Tensor indices(Context& ctx, const Shape& shape, int64_t bound) {
  const Tensor out = ctx.empty(shape, DType::kI32);
  const Rng rng(2, 0);
  uint64_t i = 0;
  for (int32_t& x : out.span<int32_t>()) x = static_cast<int32_t>(rng.below(i++, static_cast<uint64_t>(bound)));
  return out;
}

/// Prints GB/s for `bytes` read and written a call.
inline void count_bytes(benchmark::State& state, int64_t bytes) { state.SetBytesProcessed(state.iterations() * bytes); }

/// Prints floating-point operations a second (a multiplication and an addition are two).
inline void count_flops(benchmark::State& state, int64_t flops) {
  state.counters["FLOP/s"] = benchmark::Counter(static_cast<double>(flops), benchmark::Counter::kIsIterationInvariantRate);
}

inline DType dtype_arg(const benchmark::State& state, size_t index) { return static_cast<DType>(state.range(index)); }

constexpr int64_t kF32 = static_cast<int64_t>(DType::kF32);
constexpr int64_t kBF16 = static_cast<int64_t>(DType::kBF16);

}  // namespace cistron::bench
