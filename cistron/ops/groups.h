#pragma once
// Routed rows. Each token picks k experts; its k copies ("rows") are laid out by expert, each expert's segment starting at a
// multiple of the row alignment. Rows between an expert's last row and the next segment are pad rows: whoever produces a tensor
// that is later contracted over rows writes zeros there; consumers may read pad rows but never use their results. Nothing past
// `starts[E]` is read. All of it lies on the device; the host never needs the counts.
// A packed tensor has the rows in use alone, in the same order: row starts[e] + i lies at counts[0] + ... + counts[e - 1] + i.
#include <algorithm>

#include "cistron/core/context.h"

namespace cistron::ops {

struct Groups {
  Tensor starts;      // [E + 1] i32: first row of each expert's segment; the last entry is the end of all
  Tensor counts;      // [E] i32: rows in use in each segment
  Tensor source_row;  // [max_rows] i32: token that a row copies, -1 in pad rows
  Tensor weight;      // [max_rows] f32: routing weight of a row, 0 in pad rows
  Tensor token_rows;  // [T, k] i32: the row of token t's j-th choice (the inverse of source_row), -1: on another rank

  [[nodiscard]] int64_t num_experts() const { return counts.dim(0); }
  [[nodiscard]] int64_t max_rows() const { return source_row.dim(0); }
  [[nodiscard]] int64_t num_tokens() const { return token_rows.dim(0); }
  [[nodiscard]] int64_t top_k() const { return token_rows.dim(1); }
  /// Of a packed tensor: no more are ever in use.
  [[nodiscard]] int64_t packed_rows() const { return std::min(num_tokens() * top_k(), max_rows()); }
};

/// What a segment's start must be a multiple of on this context's device and precision.
int64_t row_alignment(const Context& ctx);

/// The most rows that T tokens with k experts each can need: T k + E (alignment - 1), rounded down, since segments are whole.
int64_t max_routed_rows(int64_t tokens, int64_t top_k, int64_t experts, int64_t alignment);

/// Uninitialised `Groups` of these sizes from the context's arena, with room for the most rows that there can be...
Groups empty_groups(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts);
/// ... or for `choices` choices of these experts in all.
Groups empty_groups(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts, int64_t choices);

/// Throws, tagged with `op`, unless the members fit each other...
void check_groups(const char* op, const Groups& groups);
/// ... or those do that say where segments lie: `starts` and `counts`.
void check_segments(const char* op, const Groups& groups);

/// Stable counting sort of the choices by expert: within an expert, rows keep the order of tokens. Group e is of expert
/// first_expert + e; choices outside [first_expert, first_expert + E) belong to other ranks (or to nobody: -1) and get no row.
/// `max_routed_rows` rows always suffice. A card takes up to 512 experts (`kMaxSortBins`); more are spread over ranks. Where the
/// caller knows of fewer, the CPU throws when they don't, and a card writes nothing past the last one.
struct BuildGroups {
  const Tensor& experts;  // [T, k] i32, each row's entries distinct or negative
  const Tensor& weights;  // [T, k] f32
  const Groups& groups;   // written
  int32_t first_expert = 0;
  int64_t alignment = 0;    // of segments' starts; 0: row_alignment(ctx)
  Tensor tile_counts = {};  // scratch of the operation's own on CUDA; callers leave it undefined
};
void build_groups(Context& ctx, const BuildGroups& args);

/// All `rows` rows as one expert's: what a grouped product takes for a single layer. Only starts, counts and the numbers of rows
/// mean anything.
Groups one_group(Context& ctx, int64_t rows);
struct OneGroup {
  const Groups& groups;  // starts and counts are written
};

}  // namespace cistron::ops

namespace cistron::cpu {
void one_group(Context& ctx, const ops::OneGroup& args);
void build_groups(Context& ctx, const ops::BuildGroups& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void one_group(Context& ctx, const ops::OneGroup& args);
void build_groups(Context& ctx, const ops::BuildGroups& args);
}  // namespace cistron::cuda
