#pragma once
// Between token order and expert order. The two are each other's transpose, so each is the other's backward.
//   gather:  y[r, :] = x[source_row[r], :], zeros in pad rows
//   combine: y[t, :] = sum over j, in the order j = 0 ... k-1, of x[token_rows[t, j], :]   (f32 accumulation, no atomics)
// and the numbers that rows have one of, such as the gradients of their weights, by choice:
//   gather_choices: y[t, j] = x[token_rows[t, j]]
// A choice without a row (token_rows -1) counts nothing.
#include "cistron/ops/groups.h"

namespace cistron::ops {

struct Gather {
  const Tensor& x;  // [T, H] of any dtype
  const Groups& groups;
  const Tensor& out;  // [R, H]
};
void gather(Context& ctx, const Gather& args);

struct Combine {
  const Tensor& x;  // [R, H]
  const Groups& groups;
  const Tensor& out;        // [T, H]
  bool accumulate = false;  // add to out (rounded once)
};
void combine(Context& ctx, const Combine& args);

struct GatherChoices {
  const Tensor& rows;  // [R] f32
  const Groups& groups;
  const Tensor& out;  // [T, k] f32
};
void gather_choices(Context& ctx, const GatherChoices& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void gather(Context& ctx, const ops::Gather& args);
void combine(Context& ctx, const ops::Combine& args);
void gather_choices(Context& ctx, const ops::GatherChoices& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void gather(Context& ctx, const ops::Gather& args);
void combine(Context& ctx, const ops::Combine& args);
void gather_choices(Context& ctx, const ops::GatherChoices& args);
}  // namespace cistron::cuda
