#pragma once
#include <cmath>
#include <vector>

namespace cistron::cpu::ref {

template <class S>
S sum_of_squares(const std::vector<S>& values) {
  S sum = 0;
  for (S x : values) sum += x * x;
  return sum;
}

template <class S>
struct AdamWNumbers {
  S beta1, beta2, eps, learning_rate, weight_decay, clip_factor;
  int64_t step;
};

/// One element's update.
template <class S>
void adamw(const AdamWNumbers<S>& n, S grad, S& p, S& m, S& v) {
  const S g = grad * n.clip_factor;
  m = n.beta1 * m + (S(1) - n.beta1) * g;
  v = n.beta2 * v + (S(1) - n.beta2) * g * g;
  const S m_hat = m / (S(1) - std::pow(n.beta1, S(n.step)));
  const S v_hat = v / (S(1) - std::pow(n.beta2, S(n.step)));
  p -= n.learning_rate * n.weight_decay * p;
  p -= n.learning_rate * m_hat / (std::sqrt(v_hat) + n.eps);
}

/// The magnitude that an 8-bit code stands for, in units of its block's scale: a float of `octaves` binades and 4 fraction bits,
/// less the smallest of them.
inline double state_magnitude(int code, int octaves) {
  return std::ldexp(1.0 + code % 16 / 16.0, code / 16 - octaves) - std::ldexp(1.0, -octaves);
}

}  // namespace cistron::cpu::ref
