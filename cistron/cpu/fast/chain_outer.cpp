#include "cistron/cpu/fast/chain_outer.h"

#include <algorithm>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/words.h"

namespace cistron::cpu {

namespace {

// Rows at once: two panels of sixteen columns in the first cache.
constexpr int64_t kMostRows = 576;

struct alignas(64) Line {
  uint32_t words[kLanes];
};

// A pair of rows each, and one more: panels then begin in different sets of the cache.
constexpr int64_t panel_lines(int64_t rows) { return ceil_div(rows, 2) + 1; }

using H32 = uint16_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)

// Words of 32 columns of two rows, of which the second may be missing.
void pack_two_panels(const bf16* row, const bf16* next, Line* to, int64_t panel) {
  H32 a, b{};
  std::memcpy(&a, row, sizeof(a));
  if (next != nullptr) std::memcpy(&b, next, sizeof(b));
  const H32 low = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11,
                                          43, 12, 44, 13, 45, 14, 46, 15, 47);
  const H32 high = __builtin_shufflevector(a, b, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57,
                                           26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  std::memcpy(to, &low, sizeof(low));
  std::memcpy(to + panel, &high, sizeof(high));
}

// Zeros behind the last column, and for the second of the last pair of an odd number of rows.
void pack(const bf16* data, int64_t ld, int64_t rows, int64_t columns, std::vector<Line>& panels) {
  const int64_t panel = panel_lines(rows), whole = columns / 32 * 32;
  panels.resize(std::max(panels.size(), static_cast<size_t>(ceil_div(columns, kLanes) * panel)));
  for (int64_t r = 0; r < rows; r += 2, data += 2 * ld) {
    const bf16* next = r + 1 < rows ? data + ld : nullptr;
    Line* to = panels.data() + r / 2;
    for (int64_t c = 0; c < whole; c += 32, to += 2 * panel)
      pack_two_panels(data + c, next == nullptr ? next : next + c, to, panel);
    for_lanes(columns - whole, [&](const Lanes& l) {
      const U16 first = std::bit_cast<U16>(l.load(data + whole)) >> 16;
      const U16 both = first | (next == nullptr ? U16{} : std::bit_cast<U16>(l.load(next + whole)));
      std::memcpy(to, &both, sizeof(both));
      to += panel;
    });
  }
}

// n by k of sixteen by sixteen.
template <bool add>
void multiply(const Line* dy, const Line* x, int64_t depth, float* dw, int64_t lddw, int64_t n, int64_t k) {
  F16 sums[kLanes] = {};
  for (int64_t d = 0; d < depth; ++d) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) sums[i] = add_product(sums[i], dy[d].words[i], x[d].words);
  }
  const Lanes lanes{0, k};
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
    float* to = dw + i * lddw;
    if (i < n) lanes.store(to, add ? lanes.load(to) + sums[i] : sums[i]);
  }
}

template <bool add>
void run(const ChainOuter& p) {
  thread_local std::vector<Line> dy, x;
  pack(p.dy, p.lddy, p.rows, p.n, dy);
  pack(p.x, p.ldx, p.rows, p.k, x);
  const int64_t panel = panel_lines(p.rows), depth = ceil_div(p.rows, 2);
  for (int64_t i = 0; i < p.n; i += kLanes)
    for (int64_t j = 0; j < p.k; j += kLanes)
      multiply<add>(dy.data() + i / kLanes * panel, x.data() + j / kLanes * panel, depth, p.dw + i * p.lddw + j, p.lddw,
                    std::min(kLanes, p.n - i), std::min(kLanes, p.k - j));
}

}  // namespace

void chain_outer(const ChainOuter& p) {
  const int64_t parts = std::max<int64_t>(1, ceil_div(p.rows, kMostRows)), most = round_up(ceil_div(p.rows, parts), 2);
  ChainOuter part = p;
  for (int64_t i = 0; i < parts; ++i) {
    part.rows = std::min(most, p.rows - i * most);
    part.accumulate ? run<true>(part) : run<false>(part);
    part.dy += most * p.lddy;
    part.x += most * p.ldx;
    part.accumulate = true;
  }
}

}  // namespace cistron::cpu
