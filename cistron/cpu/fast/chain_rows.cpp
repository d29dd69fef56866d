#include "cistron/cpu/fast/chain_rows.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/words.h"

namespace cistron::cpu {

namespace {

// `count` <= 16 rows of `depth` words, zeros for the others.
template <class W>
void pack(const W* rows, int64_t count, int64_t depth, W* panel) {
  int64_t k = 0;
  for (; count == kLanes && k + 4 <= depth; k += 4)
    transpose(reinterpret_cast<const float*>(rows + k), depth, reinterpret_cast<float*>(panel + k * kLanes));
  for (; k < depth; ++k)
    for (int64_t i = 0; i < kLanes; ++i) panel[k * kLanes + i] = i < count ? rows[i * depth + k] : W{};
}

template <class T, class W>
struct Tile {
  T* y;
  int64_t ldy, columns;
  bool accumulate;
  const W* next_w;
};

// The next tile's w, one line a step, comes from memory meanwhile.
template <int64_t rows, class T, class W>
void multiply_rows(const W* x, const W* w, int64_t depth, const Tile<T, W>& tile) {
  F16 sums[rows] = {};
  for (int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(tile.next_w + k * kLanes);
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; ++r) sums[r] = add_product(sums[r], x[k * kLanes + r], w + k * kLanes);
  }
  const Lanes lanes{0, tile.columns};
#pragma GCC unroll 16
  for (int64_t r = 0; r < rows; ++r) {
    T* y = tile.y + r * tile.ldy;
    lanes.store(y, tile.accumulate ? lanes.load(y) + sums[r] : sums[r]);
  }
}

template <class T, class W, size_t... i>
constexpr auto kernels(std::index_sequence<i...> /*rows*/) {
  using Kernel = void (*)(const W*, const W*, int64_t, const Tile<T, W>&);
  return std::array<Kernel, kLanes>{multiply_rows<static_cast<int64_t>(i) + 1, T, W>...};
}

template <class B, class T>
void run(const ChainRows& p) {
  using W = Word<B>;
  static constexpr auto kKernels = kernels<T, W>(std::make_index_sequence<kLanes>());
  thread_local std::vector<W> x, w;
  const int64_t depth = p.k / kPerWord<B>;
  const auto *from_x = static_cast<const W*>(p.x), *from_w = static_cast<const W*>(p.w);
  x.resize(std::max(x.size(), static_cast<size_t>(round_up(p.m, kLanes) * depth)));
  w.resize(std::max(w.size(), static_cast<size_t>(kLanes * depth)));
  for (int64_t i = 0; i < p.m; i += kLanes) pack(from_x + i * depth, std::min(kLanes, p.m - i), depth, x.data() + i * depth);
  for (int64_t j = 0; j < p.n; j += kLanes) {
    const int64_t columns = std::min(kLanes, p.n - j);
    const W* next_w = from_w + (j + 2 * kLanes <= p.n ? j + kLanes : 0) * depth;
    pack(from_w + j * depth, columns, depth, w.data());
    for (int64_t i = 0; i < p.m; i += kLanes) {
      const auto rows = static_cast<size_t>(std::min(kLanes, p.m - i));
      T* y = static_cast<T*>(p.y) + i * p.ldy + j;
      kKernels[rows - 1](x.data() + i * depth, w.data(), depth, {y, p.ldy, columns, p.accumulate, next_w});
    }
  }
}

}  // namespace

void chain_rows(const ChainRows& p) {
  if (p.in == DType::kF32) return run<float, float>(p);
  p.out == DType::kF32 ? run<bf16, float>(p) : run<bf16, bf16>(p);
}

}  // namespace cistron::cpu
