// Quantisers by tiles of at most 128 x 128 values, laid along the contraction before they are encoded. A tile is one task; it
// holds whole scale blocks, so tasks share nothing and results do not depend on the number of threads.
#include <algorithm>
#include <memory>

#include "cistron/core/checked.h"
#include "cistron/ops/mxfp8.h"
#include "cistron/ops/mxfp8_format.h"

namespace cistron::cpu {
namespace {

constexpr int64_t kTile = 128;

/// Values by (row, contraction) of an operand.
template <class T>
struct Source {
  const T* x = nullptr;  // one expert's matrix
  int64_t rows = 0;      // of x or of the gather; zeros follow
  int64_t width = 0;
  const int32_t* source_row = nullptr;
  const float *rstd = nullptr, *norm_weight = nullptr;  // both or neither
  bool transposed = false;                              // the operand's rows are x's columns

  [[nodiscard]] const T* row(int64_t r) const {
    if (r >= rows) return nullptr;
    if (source_row == nullptr) return x + r * width;
    return source_row[r] < 0 ? nullptr : x + source_row[r] * width;
  }
};

struct Extent {
  int64_t row, rows, k, depth;
};

/// tile[r * kTile + k] for an extent of the operand.
template <class T>
void load_tile(const Source<T>& source, const Extent& at, float* tile) {
  const bool turned = source.transposed;
  const int64_t lines = turned ? at.depth : at.rows;
  const int64_t length = turned ? at.rows : at.depth;
  const int64_t line_step = turned ? 1 : kTile;
  const int64_t step = turned ? kTile : 1;
  for (int64_t i = 0; i < lines; ++i) {
    const T* line = source.row((turned ? at.k : at.row) + i);
    float* to = tile + i * line_step;
    if (line == nullptr) {
      for (int64_t j = 0; j < length; ++j) to[j * step] = 0.0F;
    } else {
      line += turned ? at.row : at.k;
      for (int64_t j = 0; j < length; ++j) to[j * step] = static_cast<float>(line[j]);
    }
  }
}

/// The norm's output, as rounded to T, in the place of what was loaded.
template <class T>
void norm_tile(const Source<T>& source, const Extent& at, float* tile) {
  for (int64_t r = 0; r < at.rows; ++r)
    for (int64_t k = 0; k < at.depth; ++k) {
      const int64_t row = source.transposed ? at.k + k : at.row + r;
      const int64_t column = source.transposed ? at.row + r : at.k + k;
      if (row >= source.rows) continue;
      float& value = tile[r * kTile + k];
      value = static_cast<float>(T(value * source.rstd[row] * source.norm_weight[column]));
    }
}

uint32_t amax_bits(const float* tile, int64_t rows, int64_t depth) {
  uint32_t amax = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < depth; ++k) amax = std::max(amax, std::bit_cast<uint32_t>(tile[r * kTile + k]) & 0x7fffffffU);
  return amax;
}

void encode_tile(const float* tile, const ops::MxOperand& out, int64_t expert, const Extent& at) {
  auto* elements = out.elements.data<uint8_t>() + expert * out.rows() * out.depth();
  for (int64_t r = 0; r < at.rows; r += out.block_rows)
    for (int64_t k = 0; k < at.depth; k += out.group) {
      const int64_t block_rows = std::min(out.block_rows, at.rows - r);
      const float* block = tile + r * kTile + k;
      const uint8_t scale = ops::e8m0_from_amax(amax_bits(block, block_rows, out.group));
      out.scales.data<uint8_t>()[out.scale_index(expert, at.row + r, at.k + k)] = scale;
      const float inverse = ops::e8m0_inverse(scale);
      for (int64_t i = 0; i < block_rows; ++i) {
        uint8_t* to = elements + (at.row + r + i) * out.depth() + at.k + k;
        for (int64_t j = 0; j < out.group; ++j) to[j] = ops::e4m3_from_float(block[i * kTile + j] * inverse);
      }
    }
}

/// Rows [0, rows) and contraction [0, depth) of one expert, `tile_rows` rows in a tile, counted afresh in each section.
template <class T>
void encode(Context& ctx, const Source<T>& source, const ops::MxOperand& out, int64_t expert, int64_t rows, int64_t depth) {
  const int64_t tile_rows = out.is_weight() ? out.block_rows : kTile;
  const int64_t section_rows = rows / out.sections;
  const int64_t section_tiles = ceil_div(section_rows, tile_rows);
  const int64_t depth_tiles = ceil_div(depth, kTile);
  ctx.parallel_for(out.sections * section_tiles * depth_tiles, [&](int64_t task) {
    const int64_t row_tile = task / depth_tiles;
    const int64_t in_section = (row_tile % section_tiles) * tile_rows;
    const int64_t k = (task % depth_tiles) * kTile;
    const Extent at{.row = (row_tile / section_tiles) * section_rows + in_section,
                    .rows = std::min(tile_rows, section_rows - in_section),
                    .k = k,
                    .depth = std::min(kTile, depth - k)};
    const auto tile = std::make_unique_for_overwrite<float[]>(kTile * kTile);
    load_tile(source, at, tile.get());
    if (source.rstd != nullptr) norm_tile(source, at, tile.get());
    encode_tile(tile.get(), out, expert, at);
  });
}

/// Scales of rows [rows, padded) in the first `groups` groups.
void zero_scales(const ops::MxOperand& out, int64_t rows, int64_t padded, int64_t groups) {
  for (int64_t group = 0; group < groups; ++group) {
    auto* scales = out.scales.data<uint8_t>() + group * out.scales.dim(1);
    std::fill(scales + rows, scales + padded, uint8_t{0});
  }
}

template <class T>
void quantize(Context& ctx, const ops::Mxfp8Quantize& args) {
  const bool gathers = args.source_row.defined();
  Source<T> source{.x = args.x.data<T>(), .rows = gathers ? args.source_row.dim(0) : args.x.dim(0), .width = args.x.dim(1)};
  if (gathers) source.source_row = args.source_row.data<int32_t>();
  if (args.rstd.defined()) source.rstd = args.rstd.data<float>(), source.norm_weight = args.norm_weight.data<float>();
  int64_t padded = round_up(source.rows, kTile);
  if (args.starts.defined()) {
    padded = args.starts.data<int32_t>()[args.starts.dim(0) - 1];
    CISTRON_CHECK(padded % kTile == 0, "[mxfp8_quantize] segments end at row {}: a multiple of {} wanted", padded, kTile);
  }
  if (const auto& out = args.out.rows; out.defined()) {
    const int64_t rows = std::min(padded, source.rows);
    encode(ctx, source, out, 0, rows, source.width);
    zero_scales(out, rows, padded, out.num_groups());
  }
  if (const auto& out = args.out.columns; out.defined()) {
    source.transposed = true;
    encode(ctx, source, out, 0, source.width, padded);
    zero_scales(out, source.width, out.scales.dim(1), padded / out.group);
  }
}

template <class T>
void quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args) {
  const int64_t n = args.w.dim(1);
  const int64_t k = args.w.dim(2);
  for (int64_t e = 0; e < args.w.dim(0); ++e) {
    Source<T> source{.x = args.w.data<T>() + e * n * k, .rows = n, .width = k};
    if (args.out.rows.defined()) encode(ctx, source, args.out.rows, e, n, k);
    source.transposed = true;
    if (args.out.columns.defined()) encode(ctx, source, args.out.columns, e, k, n);
  }
}

template <class T>
void dequantize(Context& ctx, const ops::Mxfp8Dequantize& args) {
  const ops::MxOperand& x = args.x;
  const auto* elements = x.elements.data<uint8_t>();
  const auto* scales = x.scales.data<uint8_t>();
  ctx.parallel_for(x.elements.numel() / std::max<int64_t>(x.depth(), 1), [&](int64_t line) {
    for (int64_t k = 0; k < x.depth(); k += x.group) {
      const float scale = ops::e8m0_to_float(scales[x.scale_index(line / x.rows(), line % x.rows(), k)]);
      const int64_t at = line * x.depth() + k;
      for (int64_t i = 0; i < x.group; ++i) args.out.data<T>()[at + i] = T(ops::e4m3_to_float(elements[at + i]) * scale);
    }
  });
}

}  // namespace

void mxfp8_quantize(Context& ctx, const ops::Mxfp8Quantize& args) {
  args.x.dtype() == DType::kF32 ? quantize<float>(ctx, args) : quantize<bf16>(ctx, args);
}

void mxfp8_quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args) {
  args.w.dtype() == DType::kF32 ? quantize_weights<float>(ctx, args) : quantize_weights<bf16>(ctx, args);
}

void mxfp8_dequantize(Context& ctx, const ops::Mxfp8Dequantize& args) {
  args.out.dtype() == DType::kF32 ? dequantize<float>(ctx, args) : dequantize<bf16>(ctx, args);
}

}  // namespace cistron::cpu
