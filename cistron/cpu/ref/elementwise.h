#pragma once
// References of the elementwise operations, one element at a time.

namespace cistron::cpu::ref {

template <class S>
S clamp(S x, S limit) {
  if (x > limit) return limit;
  return x < -limit ? -limit : x;
}

template <class S>
S clamp_backward(S clamped, S limit, S dx) {
  return clamped >= limit || clamped <= -limit ? S(0) : dx;
}

}  // namespace cistron::cpu::ref
