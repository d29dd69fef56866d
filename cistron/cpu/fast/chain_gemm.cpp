#include "cistron/cpu/fast/chain_gemm.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cistron/core/checked.h"

namespace cistron::cpu {

namespace {

using F8 = float __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)

constexpr int64_t kRows = 6;  // 12 accumulators, two columns and a broadcast: 15 of 16 registers
constexpr int64_t kColumns = 16;

// op(a)[i, k] = data[i * row + k * step]
struct Strided {
  const float* data;
  int64_t row, step;
};

// Columns [first, first + kColumns) of op(b) as [k, kColumns], zeros behind the last.
void pack_panel(const Gemm& g, const float* b, int64_t first, float* panel) {
  const int64_t count = std::min(kColumns, g.n - first);
  if (count < kColumns) std::fill_n(panel, g.k * kColumns, 0.0F);
  if (!g.transpose_b) {
    for (int64_t k = 0; k < g.k; ++k) std::copy_n(b + k * g.ldb + first, count, panel + k * kColumns);
    return;
  }
  for (int64_t j = 0; j < count; ++j)
    for (int64_t k = 0; k < g.k; ++k) panel[k * kColumns + j] = b[(first + j) * g.ldb + k];
}

F8 load8(const float* p) {
  F8 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <int64_t rows>
void micro_kernel(const Strided& a, const float* panel, int64_t depth, float (*out)[kColumns]) {
  F8 sum[rows][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const F8 low = load8(panel + k * kColumns), high = load8(panel + k * kColumns + 8);
#pragma GCC unroll 6
    for (int64_t r = 0; r < rows; ++r) {
      const float factor = a.data[r * a.row + k * a.step];
      sum[r][0] += factor * low;
      sum[r][1] += factor * high;
    }
  }
  std::memcpy(out, sum, sizeof(sum));
}

using MicroKernel = void (*)(const Strided&, const float*, int64_t, float (*)[kColumns]);
constexpr MicroKernel kKernels[] = {micro_kernel<1>, micro_kernel<2>, micro_kernel<3>,
                                    micro_kernel<4>, micro_kernel<5>, micro_kernel<6>};

void store_tile(const Gemm& g, const float (*tile)[kColumns], int64_t rows, int64_t columns, float* c) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < columns; ++j) c[r * g.ldc + j] = g.accumulate ? c[r * g.ldc + j] + tile[r][j] : tile[r][j];
}

}  // namespace

void chain_gemm(const Gemm& g, const float* a, const float* b, float* c) {
  thread_local std::vector<float> panel;
  panel.resize(std::max(panel.size(), static_cast<size_t>(g.k * kColumns)));
  const Strided rows{a, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1};
  float tile[kRows][kColumns];
  for (int64_t j = 0; j < g.n; j += kColumns) {
    pack_panel(g, b, j, panel.data());
    for (int64_t i = 0; i < g.m; i += kRows) {
      const int64_t count = std::min(kRows, g.m - i);
      kKernels[count - 1]({a + i * rows.row, rows.row, rows.step}, panel.data(), g.k, tile);
      store_tile(g, tile, count, std::min(kColumns, g.n - j), c + i * g.ldc + j);
    }
  }
}

}  // namespace cistron::cpu
