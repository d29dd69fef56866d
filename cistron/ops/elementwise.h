#pragma once
// Small operations on whole tensors. f32 and bf16, arithmetic in f32.
#include "cistron/core/context.h"

namespace cistron::ops {

/// out[i] = x[i] in out's dtype (f32 <-> bf16, or a copy).
struct Cast {
  const Tensor& x;
  const Tensor& out;
};
void cast(Context& ctx, const Cast& args);

/// out[i] = a[i] + b[i]; out may alias either. f64 too: the sums of losses.
struct Add {
  const Tensor& a;
  const Tensor& b;
  const Tensor& out;
};
void add(Context& ctx, const Add& args);

/// Every byte zero; any dtype.
struct Zero {
  const Tensor& out;
};
void zero(Context& ctx, const Zero& args);

/// In place x[i] = min(max(x[i], -limit), limit).
struct Clamp {
  const Tensor& x;
  float limit;
};
void clamp(Context& ctx, const Clamp& args);

/// dx[i] = 0 where the clamp held x back; `clamped` is its output: an element at the limit counts as held back.
struct ClampBackward {
  const Tensor& clamped;
  float limit;
  const Tensor& dx;  // in place
};
void clamp_backward(Context& ctx, const ClampBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void cast(Context& ctx, const ops::Cast& args);
void add(Context& ctx, const ops::Add& args);
void zero(Context& ctx, const ops::Zero& args);
void clamp(Context& ctx, const ops::Clamp& args);
void clamp_backward(Context& ctx, const ops::ClampBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void cast(Context& ctx, const ops::Cast& args);
void add(Context& ctx, const ops::Add& args);
void zero(Context& ctx, const ops::Zero& args);
void clamp(Context& ctx, const ops::Clamp& args);
void clamp_backward(Context& ctx, const ops::ClampBackward& args);
}  // namespace cistron::cuda
