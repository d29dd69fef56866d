#pragma once
// What the outputs of ops/grouped_swiglu.h may be, for every backend: each element against float64, with the error that its
// roundings can make.
#include "cistron/cpu/ref/swiglu.h"
#include "cistron/ops/grouped_swiglu.h"
#include "tests/ops/bias_cases.h"

namespace cistron::test {

using cpu::ref::Matrix;

/// Operands of routed rows, on the host, with poison in pad rows and after the last.
struct SwigluCase {
  ops::Groups groups;
  Tensor x, w;     // [R, H] (dy in backward); [E, 2F, H] forward, [E, H, F] backward
  Tensor gate_up;  // [P, 2F], of backward
  Tensor bias;     // [E, 2F], of forward; undefined: none
  DType dtype;
  int64_t width;  // F
  std::vector<int32_t> source;
  std::vector<double> weight;

  SwigluCase(const Context& ctx, const RoutingCase& c, int64_t hidden, int64_t width, bool backward, DType dtype)
      : groups(groups_of(ctx, c, 1)),
        x(random_tensor(ctx, {groups.max_rows(), hidden}, dtype, 2)),
        w(random_tensor(ctx, backward ? Shape{c.experts, hidden, width} : Shape{c.experts, 2 * width, hidden}, dtype, 3, 0.3)),
        gate_up(random_tensor(ctx, {groups.packed_rows(), 2 * width}, dtype, 4, 3.0)),
        dtype(dtype),
        width(width),
        source(used_source_rows(groups)),
        weight(to_double(groups.weight.rows(0, used()))) {
    poison_unused_rows(x, groups);
    poison(rows_after_use(gate_up, groups));
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source.size()); }
  [[nodiscard]] bool counts(int64_t r) const { return source[static_cast<size_t>(r)] >= 0; }
  [[nodiscard]] double rounding() const { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }
};

/// Each row of x times its expert's weight, along its rows or across them; of absolute values for bounds.
inline Matrix<double> routed_product(const SwigluCase& in, bool across, bool absolute) {
  const auto starts = ints(in.groups.starts);
  const int64_t n = across ? in.w.dim(2) : in.w.dim(1), k = across ? in.w.dim(1) : in.w.dim(2);
  const auto x = to_double(in.x), w = to_double(in.w);
  Matrix<double> out(in.used(), n);
  for (int64_t e = 0; e < in.groups.num_experts(); ++e)
    for (int64_t r = starts[static_cast<size_t>(e)]; r < starts[static_cast<size_t>(e) + 1]; ++r)
      for (int64_t j = 0; in.counts(r) && j < n; ++j)
        for (int64_t i = 0; i < k; ++i) {
          const auto place = static_cast<size_t>(e * n * k + (across ? i * n + j : j * k + i));
          const double term = x[static_cast<size_t>(r * k + i)] * w[place];
          out(r, j) += absolute ? std::abs(term) : term;
        }
  return out;
}

/// The activation of these stored gates: exp to 4 u, sum, quotient, three products.
inline testing::AssertionResult activation_within(const SwigluCase& in, const Matrix<double>& gate_up, const Tensor& act,
                                                  double factor) {
  auto want = cpu::ref::scaled_swiglu_forward(gate_up, in.weight, in.source);
  std::vector<double> bound;
  for (double& v : want.data) {
    bound.push_back(std::abs(v) * (9 * 0x1p-24 + in.rounding()) * 1.01);
    v *= factor;
  }
  return within(act.rows(0, in.used()), want.data, bound);
}

/// `factor` other than 1: a control, which must fail.
inline testing::AssertionResult forward_within(const SwigluCase& in, const Tensor& gate_up, const Tensor& act,
                                               double factor = 1.0) {
  if (!all_nan(rows_after_use(gate_up, in.groups))) return testing::AssertionFailure() << "gate_up goes past the last row";
  const auto stored = unpacked(gate_up, in.groups);
  auto want = routed_product(in, false, false), size = routed_product(in, false, true);
  if (in.bias.defined()) {
    cpu::ref::add_grouped_bias(want, to_matrix(in.bias), {}, segments_of(in.groups));
    cpu::ref::add_grouped_bias(size, absolute(to_matrix(in.bias)), {}, segments_of(in.groups));
  }
  const auto bound = product_bound(size, in.x.dim(1) + 1, in.dtype, in.dtype);
  if (auto result = within(stored.data, want.data, bound); !result) return result << " in gate_up";
  return activation_within(in, stored, act, factor) << " in act";
}

/// What the gradients may be when d errs by `d_bound`.
struct SwigluGradients {
  cpu::ref::ScaledSwigluGradients<double> want;
  Matrix<double> bound;
  std::vector<double> dweight_bound;

  explicit SwigluGradients(const SwigluCase& in) : bound(in.used(), 2 * in.width), dweight_bound(in.weight.size(), 0.0) {
    constexpr double kU = 0x1p-24;
    const auto g = unpacked(in.gate_up, in.groups);
    const auto d = routed_product(in, true, false);
    const auto d_bound = product_bound(routed_product(in, true, true), in.x.dim(1), in.dtype, in.dtype);
    want = cpu::ref::scaled_swiglu_backward(d, g, in.weight, in.source);
    for (int64_t r = 0; r < in.used(); ++r)
      for (int64_t f = 0; in.counts(r) && f < in.width; ++f) {
        const double sig = cpu::ref::sigmoid(g(r, f)), u = g(r, in.width + f), w = in.weight[static_cast<size_t>(r)];
        const double error = d_bound[static_cast<size_t>(r * in.width + f)];
        const double of_gate = error * std::abs(w * u * sig * (1 + g(r, f) * (1 - sig)));
        const double of_up = error * std::abs(w * g(r, f) * sig);
        const double dgate = std::abs(want.dgate_up(r, f)), dup = std::abs(want.dgate_up(r, in.width + f));
        // 1 - sigmoid errs by 7 u, absolutely; times g, plus 1, times four factors
        bound(r, f) = of_gate + 18 * kU * std::abs(d(r, f) * w * u) * sig * (1 + std::abs(g(r, f))) +
                      1.01 * in.rounding() * (dgate + of_gate);
        bound(r, in.width + f) = of_up + 9 * kU * dup + 1.01 * in.rounding() * (dup + of_up);
        const double term = std::abs(g(r, f) * sig * u);
        dweight_bound[static_cast<size_t>(r)] +=
            error * term + (static_cast<double>(in.width) / 16 + 18) * kU * (std::abs(d(r, f)) + error) * term;
      }
  }
};

struct SwigluOutputs {
  Tensor dgate_up, act, dweight;
};
inline testing::AssertionResult backward_within(const SwigluCase& in, const SwigluOutputs& got, double factor = 1.0) {
  SwigluGradients gradients(in);
  for (double& v : gradients.want.dgate_up.data) v *= factor;
  if (auto result = within(got.dgate_up.rows(0, in.used()), gradients.want.dgate_up.data, gradients.bound.data); !result)
    return result << " in dgate_up";
  if (auto result = within(got.dweight.rows(0, in.used()), gradients.want.dweight, gradients.dweight_bound); !result)
    return result << " in dweight";
  return activation_within(in, unpacked(in.gate_up, in.groups), got.act, 1.0) << " in act";
}

}  // namespace cistron::test
