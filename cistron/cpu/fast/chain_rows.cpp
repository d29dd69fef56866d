#include "cistron/cpu/fast/chain_rows.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

using F4 = float __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)

F4 load4(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Four columns of rows 0, 4, 8 and 12 from p on.
F16 load_quarters(const float* p, int64_t ld) {
  const F4 a = load4(p), b = load4(p + 4 * ld), c = load4(p + 8 * ld), d = load4(p + 12 * ld);
  const auto ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// In each quarter: elements 0 and 1, or 2 and 3, of a and b in turns.
F16 low(F16 a, F16 b) { return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29); }
F16 high(F16 a, F16 b) { return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31); }
// In each quarter: the first, or the second, half of a and of b.
F16 first(F16 a, F16 b) { return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29); }
F16 second(F16 a, F16 b) { return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31); }

// Four columns of sixteen rows: panel[k][i] = rows[i][k].
void transpose(const float* rows, int64_t ld, float* panel) {
  const F16 r0 = load_quarters(rows, ld), r1 = load_quarters(rows + ld, ld), r2 = load_quarters(rows + 2 * ld, ld),
            r3 = load_quarters(rows + 3 * ld, ld);
  const F16 low01 = low(r0, r1), high01 = high(r0, r1), low23 = low(r2, r3), high23 = high(r2, r3);
  store(panel, first(low01, low23));
  store(panel + kLanes, second(low01, low23));
  store(panel + 2 * kLanes, first(high01, high23));
  store(panel + 3 * kLanes, second(high01, high23));
}

// `count` <= 16 rows of `depth`, zeros for the others.
void pack(const float* rows, int64_t count, int64_t depth, float* panel) {
  int64_t k = 0;
  for (; count == kLanes && k + 4 <= depth; k += 4) transpose(rows + k, depth, panel + k * kLanes);
  for (; k < depth; ++k)
    for (int64_t i = 0; i < kLanes; ++i) panel[k * kLanes + i] = i < count ? rows[i * depth + k] : 0.0F;
}

struct Tile {
  float* y;
  int64_t ldy, columns;
  bool accumulate;
  const float* next_w;
};

// The next tile's w, one line a step, comes from memory meanwhile.
template <int64_t rows>
void multiply(const float* x, const float* w, int64_t depth, const Tile& tile) {
  F16 sums[rows] = {};
  for (int64_t k = 0; k < depth; ++k) {
    __builtin_prefetch(tile.next_w + k * kLanes);
    const F16 columns = load(w + k * kLanes);
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; ++r) sums[r] += x[k * kLanes + r] * columns;
  }
  const Lanes lanes{0, tile.columns};
#pragma GCC unroll 16
  for (int64_t r = 0; r < rows; ++r) {
    float* y = tile.y + r * tile.ldy;
    lanes.store(y, tile.accumulate ? lanes.load(y) + sums[r] : sums[r]);
  }
}

using Multiply = void (*)(const float*, const float*, int64_t, const Tile&);
template <size_t... i>
constexpr std::array<Multiply, kLanes> kernels(std::index_sequence<i...> /*rows*/) {
  return {multiply<static_cast<int64_t>(i) + 1>...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<kLanes>());

}  // namespace

void chain_rows(const ChainRows& p) {
  thread_local std::vector<float> x, w;
  x.resize(std::max(x.size(), static_cast<size_t>(round_up(p.m, kLanes) * p.k)));
  w.resize(std::max(w.size(), static_cast<size_t>(kLanes * p.k)));
  for (int64_t i = 0; i < p.m; i += kLanes) pack(p.x + i * p.k, std::min(kLanes, p.m - i), p.k, x.data() + i * p.k);
  for (int64_t j = 0; j < p.n; j += kLanes) {
    const int64_t columns = std::min(kLanes, p.n - j);
    const float* next_w = p.w + (j + 2 * kLanes <= p.n ? j + kLanes : 0) * p.k;
    pack(p.w + j * p.k, columns, p.k, w.data());
    for (int64_t i = 0; i < p.m; i += kLanes) {
      const auto rows = static_cast<size_t>(std::min(kLanes, p.m - i));
      kKernels[rows - 1](x.data() + i * p.k, w.data(), p.k, {p.y + i * p.ldy + j, p.ldy, columns, p.accumulate, next_w});
    }
  }
}

}  // namespace cistron::cpu
