#pragma once
// What the optimizer's tests share on the CPU and on a card.
#include "cistron/cpu/ref/optimizer.h"
#include "cistron/ops/optimizer.h"
#include "tests/ops/support.h"

namespace cistron::test {

inline std::vector<Tensor> gradients(const Context& ctx) {
  std::vector<Tensor> grads;
  for (const Shape& shape : {Shape{3, 17}, Shape{1}, Shape{0, 8}, Shape{2, 100, 300}, Shape{16384}})
    grads.push_back(random_tensor(ctx, shape, DType::kF32, grads.size() + 1));
  return grads;
}

struct Moments {
  Tensor master, grad, m, v, working;
  Moments(const Context& ctx, const Shape& shape, uint64_t seed)
      : master(random_tensor(ctx, shape, DType::kF32, seed)),
        grad(random_tensor(ctx, shape, DType::kF32, seed + 1)),
        m(random_tensor(ctx, shape, DType::kF32, seed + 2)),
        v(random_tensor(ctx, shape, DType::kF32, seed + 3)),
        working(poisoned(ctx, shape, DType::kBF16)) {
    for (float& x : v.span<float>()) x *= x;
  }
  [[nodiscard]] ops::AdamWTensor args(float decay) const { return {master, grad, m, v, working, decay}; }
};

inline constexpr float kBeta1 = 0.9F, kBeta2 = 0.95F;

inline StepState state_at(int64_t step) {
  return {.step = step,
          .learning_rate = 3e-2F,
          .bias_correction1 = static_cast<float>(1 - std::pow(static_cast<double>(kBeta1), step)),
          .bias_correction2 = static_cast<float>(1 - std::pow(static_cast<double>(kBeta2), step)),
          .clip_factor = 0.37F};
}

struct Expected {
  std::vector<double> p, m, v, p_bound, m_bound, v_bound;
};

/// The reference's update in f64, and what single roundings of its terms can add up to.
inline Expected expected(const Moments& t, const StepState& state, float decay, double eps) {
  constexpr double kU = 0x1p-24;
  Expected e{to_double(t.master), to_double(t.m), to_double(t.v), {}, {}, {}};
  const auto grad = to_double(t.grad);
  const cpu::ref::AdamWNumbers<double> numbers{kBeta1, kBeta2, eps, state.learning_rate, decay, state.clip_factor, state.step};
  for (size_t i = 0; i < e.p.size(); ++i) {
    const double p = std::abs(e.p[i]);
    const double m_size = kBeta1 * std::abs(e.m[i]) + (1.0 - kBeta1) * std::abs(grad[i] * state.clip_factor);
    cpu::ref::adamw(numbers, grad[i], e.p[i], e.m[i], e.v[i]);
    const double update =
        state.learning_rate * m_size / state.bias_correction1 / (std::sqrt(e.v[i] / state.bias_correction2) + eps);
    e.m_bound.push_back(4 * kU * m_size);  // product, product, product, sum
    e.v_bound.push_back(5 * kU * e.v[i]);  // all terms positive
    e.p_bound.push_back(14 * kU * update + 4 * kU * (p + update));
  }
  return e;
}

}  // namespace cistron::test
