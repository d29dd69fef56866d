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

  struct Terms {
    double m, p;  ///< sums of absolute values
  };
  /// The reference's update of element i, from p, m and v to what they become, in f64; and what single roundings of its terms can
  /// add up to.
  Terms update(size_t i, double grad, const cpu::ref::AdamWNumbers<double>& numbers, const StepState& state) {
    constexpr double kU = 0x1p-24;
    const double before = std::abs(p[i]);
    const double m_size = kBeta1 * std::abs(m[i]) + (1.0 - kBeta1) * std::abs(grad * state.clip_factor);
    cpu::ref::adamw(numbers, grad, p[i], m[i], v[i]);
    const double size =
        state.learning_rate * m_size / state.bias_correction1 / (std::sqrt(v[i] / state.bias_correction2) + numbers.eps);
    m_bound.push_back(4 * kU * m_size);  // product, product, product, sum
    v_bound.push_back(5 * kU * v[i]);    // all terms positive
    // 14 roundings; and on a card sqrt.approx and rcp.approx are wrong by up to 2^-23 each, which is two more apiece.
    p_bound.push_back(18 * kU * size + 4 * kU * (before + size));
    return {.m = m_size, .p = before + size};
  }
};

/// The reference's update in f64, and what single roundings of its terms can add up to.
inline Expected expected(const Moments& t, const StepState& state, float decay, double eps) {
  Expected e{to_double(t.master), to_double(t.m), to_double(t.v), {}, {}, {}};
  const auto grad = to_double(t.grad);
  const cpu::ref::AdamWNumbers<double> numbers{kBeta1, kBeta2, eps, state.learning_rate, decay, state.clip_factor, state.step};
  for (size_t i = 0; i < e.p.size(); ++i) e.update(i, grad[i], numbers, state);
  return e;
}

/// How a tensor is kept.
struct Kept {
  DType master, states;
};
inline constexpr Kept kKept[] = {{DType::kF32, DType::kBF16},
                                 {DType::kF32, DType::kU8},
                                 {DType::kBF16, DType::kF32},
                                 {DType::kBF16, DType::kBF16},
                                 {DType::kBF16, DType::kU8}};

inline constexpr uint64_t kStream = 0x123456789abcdefULL;

/// Any codes and scales are states: random ones, of scales from 2^-8 to 2^-1.
inline Tensor random_bytes(const Context& ctx, const Shape& shape, uint64_t seed, int least, int bound) {
  Tensor t = ctx.empty(shape, DType::kU8);
  const Tensor ints = random_ints(ctx, shape, seed, bound);
  for (size_t i = 0; i < ints.span<int32_t>().size(); ++i)
    t.span<uint8_t>()[i] = static_cast<uint8_t>(least + ints.span<int32_t>()[i]);
  return t;
}

inline ops::AdamWTensor random_kept(const Context& ctx, const Shape& shape, Kept kept, float decay, uint64_t seed) {
  ops::AdamWTensor t{.master = random_tensor(ctx, shape, kept.master, seed),
                     .grad = random_tensor(ctx, shape, DType::kF32, seed + 1),
                     .weight_decay = decay,
                     .stream = kStream};
  if (kept.master == DType::kF32) t.working = poisoned(ctx, shape, DType::kBF16);
  if (kept.states == DType::kU8) {
    t.m = random_bytes(ctx, shape, seed + 2, 0, 256);
    t.v = random_bytes(ctx, shape, seed + 3, 0, 256);
    t.m_scale = random_bytes(ctx, ops::scale_shape(shape), seed + 4, 119, 8);
    t.v_scale = random_bytes(ctx, ops::scale_shape(shape), seed + 5, 119, 8);
  } else {
    t.m = random_tensor(ctx, shape, kept.states, seed + 2);
    t.v = random_tensor(ctx, shape, kept.states, seed + 3);
    if (kept.states == DType::kF32)
      for (float& x : t.v.span<float>()) x *= x;
    else
      for (bf16& x : t.v.span<bf16>()) x.bits &= 0x7fff;
  }
  return t;
}

inline std::vector<Tensor> kept_tensors(const ops::AdamWTensor& t) {
  std::vector<Tensor> all{t.master, t.m, t.v};
  for (const Tensor& more : {t.working, t.m_scale, t.v_scale})
    if (more.defined()) all.push_back(more);
  return all;
}

inline ops::AdamWTensor copy_of(const Context& ctx, const ops::AdamWTensor& t) {
  ops::AdamWTensor copy = t;
  for (Tensor* tensor : {&copy.master, &copy.grad, &copy.m, &copy.v, &copy.working, &copy.m_scale, &copy.v_scale})
    if (tensor->defined()) *tensor = copy_of(ctx, *tensor);
  return copy;
}

/// Rows [begin, begin + count) of it, as a rank holds them.
inline ops::AdamWTensor rows_of(const ops::AdamWTensor& t, int64_t begin, int64_t count) {
  ops::AdamWTensor part = t;
  for (Tensor* tensor : {&part.master, &part.grad, &part.m, &part.v, &part.working, &part.m_scale, &part.v_scale})
    if (tensor->defined()) *tensor = tensor->rows(begin, count);
  part.first_row += begin;
  return part;
}

/// The scale of each element's block.
inline std::vector<double> scales_of(const Tensor& scales, const Shape& shape) {
  const int64_t width = shape[shape.rank() - 1], blocks = scales.dim(1);
  std::vector<double> all;
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const int64_t row = i / width, block = i % width / ops::kStateBlock;
    all.push_back(std::ldexp(1.0, scales.span<uint8_t>()[static_cast<size_t>(row * blocks + block)] - 127));
  }
  return all;
}

/// What codes stand for, by their definition.
inline std::vector<double> moment_values(const Tensor& t, const Tensor& scales, bool is_signed) {
  if (t.dtype() != DType::kU8) return to_double(t);
  std::vector<double> values = scales_of(scales, t.shape());
  for (size_t i = 0; i < values.size(); ++i) {
    const int code = t.span<uint8_t>()[i];
    values[i] *=
        is_signed ? (code < 128 ? 1 : -1) * cpu::ref::state_magnitude(code % 128, 7) : cpu::ref::state_magnitude(code, 15);
  }
  return values;
}

/// The update of `before` in f64, and what it may differ by: single roundings, as Expected, and less than a step of what is kept
/// (bf16: 2^-7 of the value; codes: optimizer_format.h, with the scales that were chosen).
inline Expected expected_of(const ops::AdamWTensor& before, const ops::AdamWTensor& after, const StepState& state, double eps) {
  constexpr double kU = 0x1p-24;
  Expected e{to_double(before.master),
             moment_values(before.m, before.m_scale, true),
             moment_values(before.v, before.v_scale, false),
             {},
             {},
             {}};
  const auto grad = to_double(before.grad);
  const cpu::ref::AdamWNumbers<double> numbers{
      kBeta1, kBeta2, eps, state.learning_rate, before.weight_decay, state.clip_factor, state.step};
  const bool codes = before.m.dtype() == DType::kU8;
  const auto m_scales = codes ? scales_of(after.m_scale, before.m.shape()) : std::vector<double>(e.m.size());
  const auto v_scales = codes ? scales_of(after.v_scale, before.v.shape()) : std::vector<double>(e.v.size());
  const auto step_of = [](DType dtype, double value, double scale, double floor) {
    if (dtype == DType::kF32) return 0.0;
    return dtype == DType::kBF16 ? 0x1p-7 * std::abs(value) : (std::abs(value) + floor * scale) / 16;
  };
  for (size_t i = 0; i < e.p.size(); ++i) {
    const auto [m_terms, p_terms] = e.update(i, grad[i], numbers, state);
    e.m_bound[i] += step_of(before.m.dtype(), m_terms, m_scales[i], 0x1p-7);
    e.v_bound[i] += step_of(before.v.dtype(), e.v[i], v_scales[i], 0x1p-15) * (1 + 6 * kU);
    e.p_bound[i] += step_of(before.master.dtype(), p_terms, 0, 0);
  }
  return e;
}

inline testing::AssertionResult is_update_of(const ops::AdamWTensor& before, const ops::AdamWTensor& after,
                                             const StepState& state, double eps) {
  const Expected want = expected_of(before, after, state, eps);
  auto p = within(after.master, want.p, want.p_bound);
  if (!p) return p << " (weight)";
  auto m = within(moment_values(after.m, after.m_scale, true), want.m, want.m_bound);
  if (!m) return m << " (m)";
  return within(moment_values(after.v, after.v_scale, false), want.v, want.v_bound) << " (v)";
}

}  // namespace cistron::test
