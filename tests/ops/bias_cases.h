#pragma once
// Experts' biases (ops/grouped_bias.h) for every backend: operands, and what their products and gradients may be, element by
// element against float64.
#include "cistron/cpu/ref/gather.h"
#include "cistron/cpu/ref/grouped_bias.h"
#include "cistron/ops/grouped_gemm.h"
#include "tests/ops/product_bounds.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {

inline cpu::ref::Segments segments_of(const ops::Groups& groups) {
  const auto starts = to_double(groups.starts), counts = to_double(groups.counts);
  return {{starts.begin(), starts.end() - 1}, {counts.begin(), counts.end()}};
}

/// The same biases, each in the next expert's place: for controls.
inline Tensor of_wrong_experts(const Context& ctx, const Tensor& bias) {
  const Tensor moved = copy_of(ctx, bias);
  auto values = moved.span<float>();
  std::rotate(values.begin(), values.begin() + bias.dim(1), values.end());
  return moved;
}

/// Operands of routed rows on the host, poisoned in pad rows and after the last.
struct BiasCase {
  using Matrix = cpu::ref::Matrix<double>;

  ops::Groups groups;
  bool scaled, by_token;
  Tensor bias;  // [E, N] f32
  Tensor dy;    // [R, N], or [T, N] by token
  cpu::ref::Segments segments;
  std::vector<int32_t> source;
  std::vector<double> scale;  // empty where it is 1

  BiasCase(const Context& ctx, const RoutingCase& c, int64_t width, DType dtype, bool scaled, bool by_token = false)
      : groups(groups_of(ctx, c, 1)),
        scaled(scaled),
        by_token(by_token),
        bias(random_tensor(ctx, {c.experts, width}, DType::kF32, 5)),
        dy(random_tensor(ctx, {by_token ? c.tokens : groups.max_rows(), width}, dtype, 6)),
        segments(segments_of(groups)),
        source(used_source_rows(groups)) {
    if (!by_token) poison_unused_rows(dy, groups);
    if (scaled) scale = to_double(groups.weight.rows(0, used()));
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source.size()); }
  [[nodiscard]] Matrix dy_rows() const {
    return by_token ? cpu::ref::gather(to_matrix(dy), source) : to_matrix(dy.rows(0, used()));
  }
  [[nodiscard]] ops::ExpertBias operand() const { return {.values = bias, .scaled = scaled}; }
};

struct BiasGradients {
  Tensor dbias, dweight;
};

/// Sums of products in any order; with what dbias and dweight held `before`, where they were added to. `wrong` stands for the
/// bias in a control.
inline testing::AssertionResult gradients_within(const BiasCase& in, const BiasGradients& got, const BiasGradients& before = {},
                                                 const Tensor& wrong = {}) {
  const auto absolute_scale = [&] {
    auto scale = in.scale;
    for (double& s : scale) s = std::abs(s);
    return scale;
  };
  const auto bias = to_matrix(wrong.defined() ? wrong : in.bias);
  auto want = cpu::ref::grouped_bias_backward(in.dy_rows(), bias, in.scale, in.segments);
  auto size = cpu::ref::grouped_bias_backward(absolute(in.dy_rows()), absolute(bias), absolute_scale(), in.segments);
  const auto most_rows = *std::max_element(in.segments.counts.begin(), in.segments.counts.end());
  const auto check = [](const Tensor& got, const Tensor& before, std::vector<double> want, std::vector<double> size,
                        int64_t terms) {
    if (before.defined()) {
      const auto old = to_double(before);
      for (size_t i = 0; i < want.size(); ++i) want[i] += old[i];
      for (size_t i = 0; i < want.size(); ++i) size[i] += std::abs(old[i]);
    }
    for (double& bound : size) bound *= static_cast<double>(terms + 2) * 0x1p-24;
    return within(got, want, size);
  };
  if (auto ok = check(got.dbias, before.dbias, want.dbias.data, size.dbias.data, most_rows); !ok) return ok << " in dbias";
  if (!in.scaled) return testing::AssertionSuccess();
  const Tensor old = before.dweight.defined() ? before.dweight.rows(0, in.used()) : Tensor{};
  for (size_t r = 0; old.defined() && r < in.source.size(); ++r)  // pad rows are zeros whatever was there
    if (in.source[r] < 0) old.data<float>()[r] = 0;
  return check(got.dweight.rows(0, in.used()), old, want.dweight, size.dweight, in.bias.dim(1)) << " in dweight";
}

/// Of x w^T plus the bias in the rows in use. `roundings` to the output's dtype: one, or two where the product is rounded before
/// the bias is added.
inline testing::AssertionResult biased_product_within(const BiasCase& in, const Tensor& x, const Tensor& w, const Tensor& got,
                                                      const Tensor& bias, int roundings = 1) {
  const auto rows = to_matrix(x.rows(0, in.used())), weights = to_matrix(w);
  auto want = cpu::ref::grouped_gemm_forward(rows, weights, w.dim(1), in.segments);
  auto size = cpu::ref::grouped_gemm_forward(absolute(rows), absolute(weights), w.dim(1), in.segments);
  auto scale = in.scale;
  cpu::ref::add_grouped_bias(want, to_matrix(bias), scale, in.segments);
  for (double& s : scale) s = std::abs(s);
  cpu::ref::add_grouped_bias(size, absolute(to_matrix(bias)), scale, in.segments);
  auto values = to_double(got.rows(0, in.used()));
  for (size_t i = 0; i < values.size(); ++i)
    if (in.source[i / static_cast<size_t>(want.cols)] < 0) values[i] = want.data[i];
  auto bound = product_bound(size, x.dim(1) + 2, x.dtype(), got.dtype());
  for (double& b : bound) b *= roundings;
  return within(values, want.data, bound);
}

}  // namespace cistron::test
