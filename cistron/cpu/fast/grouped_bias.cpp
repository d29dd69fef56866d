#include "cistron/cpu/fast/biased_rows.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/routed_rows.h"
#include "cistron/cpu/fast/row_tiles.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

template <class T>
float dot(const T* dy, const float* bias, int64_t width) {
  F16 sum{};
  for_lanes(width, [&](Lanes l) { sum += l.load(dy) * l.load(bias); });
  return horizontal_sum(sum);
}

/// Adds a tile's rows to `sums` [N]; their parts of dweight.
template <class T>
void backward_tile(const ops::GroupedBiasBackward& args, const RowTile& tile, float* sums) {
  const int64_t width = args.dy.dim(1);
  const RowBias bias = args.bias.scaled ? RowBias::of(args.bias, args.groups, tile.expert) : RowBias{};
  const auto* source_row = args.groups.source_row.data<int32_t>();
  for (int64_t r = tile.rows.begin; r < tile.rows.begin + tile.rows.count; ++r) {
    const T* dy = args.dy.data<T>() + (args.by_token ? source_row[r] : r) * width;
    const float scale = bias.of_row(r);
    for_lanes(width, [=](Lanes l) { l.store(sums, l.load(sums) + scale * l.load(dy)); });
    if (!args.bias.scaled) continue;
    float& dweight = args.dweight.data<float>()[r];
    dweight = (args.accumulate_dweight ? dweight : 0.0F) + dot(dy, bias.values, width);
  }
}

/// dbias[e] = (or +=) the sum over its tiles, first to last.
void sum_tiles(const Context& ctx, const ops::GroupedBiasBackward& args, const std::vector<RowTile>& tiles,
               const std::vector<float>& sums) {
  const int64_t width = args.dy.dim(1), experts = args.groups.num_experts();
  std::vector<size_t> first(static_cast<size_t>(experts) + 1, 0);
  for (const RowTile& tile : tiles) ++first[static_cast<size_t>(tile.expert) + 1];
  for (size_t e = 1; e < first.size(); ++e) first[e] += first[e - 1];
  for_rows(ctx, experts, width, [&](int64_t e) {
    float* dbias = args.dbias.grad.data<float>() + e * width;
    const size_t begin = first[static_cast<size_t>(e)], end = first[static_cast<size_t>(e) + 1];
    if (begin == end && args.dbias.accumulate) return;
    for_lanes(width, [&](Lanes l) {
      F16 sum = args.dbias.accumulate ? l.load(dbias) : F16{};
      for (size_t i = begin; i < end; ++i) sum += l.load(sums.data() + i * static_cast<size_t>(width));
      l.store(dbias, sum);
    });
  });
}

void zero_pad_rows(const ops::GroupedBiasBackward& args) {
  const auto* source_row = args.groups.source_row.data<int32_t>();
  for (int64_t r = 0; r < used_rows(args.groups); ++r)
    if (source_row[r] < 0) args.dweight.data<float>()[r] = 0.0F;
}

}  // namespace

void grouped_bias_backward(Context& ctx, const ops::GroupedBiasBackward& args) {
  const auto tiles = row_tiles(args.groups);
  const int64_t width = args.dy.dim(1);
  std::vector<float> sums(tiles.size() * static_cast<size_t>(width));
  with_float_type(args.dy.dtype(), [&](auto type) {
    ctx.parallel_for(std::ssize(tiles), [&](int64_t i) {
      backward_tile<decltype(type)>(args, tiles[static_cast<size_t>(i)], sums.data() + i * width);
    });
  });
  sum_tiles(ctx, args, tiles, sums);
  if (args.bias.scaled) zero_pad_rows(args);
}

}  // namespace cistron::cpu
