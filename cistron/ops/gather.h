#pragma once
// Between token order and expert order. The two are each other's transpose, so each is the other's backward.
//   gather:  y[r, :] = x[source_row[r], :], zeros in pad rows
//   combine: y[t, :] = sum over j, in the order j = 0 ... k-1, of x[token_rows[t, j], :]   (f32 accumulation, no atomics)
#include "cistron/ops/groups.h"

namespace cistron::ops {

struct Gather {
  const Tensor& x;  // [T, H]
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

}  // namespace cistron::ops

namespace cistron::cpu {
void gather(Context& ctx, const ops::Gather& args);
void combine(Context& ctx, const ops::Combine& args);
}  // namespace cistron::cpu
