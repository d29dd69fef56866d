#pragma once
// What the tests of ops/mxfp8_grouped_swiglu.h share, for every backend: operands, and what float64 makes of the decoded ones.
#include <algorithm>

#include "cistron/cpu/ref/mxfp8.h"
#include "cistron/cpu/ref/swiglu.h"
#include "cistron/ops/mxfp8_grouped_swiglu.h"
#include "tests/ops/bias_cases.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron::test {

using cpu::ref::Matrix;

/// Operands of routed rows on the host, with poison in pad rows and after the last: of the forward (w: gate and up) or of the
/// backward (x: dy, w: the transposed down projection).
struct Mxfp8SwigluCase {
  ops::Groups groups;
  ops::MxOperand x, w;
  Tensor gate_up;    // [P, 2F], of the backward
  Tensor bias = {};  // [E, 2F], of the forward; undefined: none
  int64_t width;     // F
  std::vector<int32_t> source;
  std::vector<double> weight;
  cpu::ref::Segments segments;

  Mxfp8SwigluCase(Context& ctx, const RoutingCase& c, int64_t hidden, int64_t width, bool backward)
      : groups(groups_of(ctx, c, 1)),
        gate_up(random_tensor(ctx, {groups.packed_rows(), 2 * width}, DType::kBF16, 4, 3.0)),
        width(width),
        source(used_source_rows(groups)),
        weight(to_double(groups.weight.rows(0, used()))) {
    poison(rows_after_use(gate_up, groups));
    segments = segments_of(groups);
    quantise_x(ctx, hidden);
    const Shape shape = backward ? Shape{c.experts, hidden, width} : Shape{c.experts, 2 * width, hidden};
    const ops::MxTensor weights = ops::mxfp8_empty_weights(ctx, shape, 128, backward ? 1 : 2);
    ops::mxfp8_quantize_weights(ctx, {.w = weights_of(ctx, shape), .out = weights});
    w = backward ? weights.columns : weights.rows;
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source.size()); }
  [[nodiscard]] bool counts(int64_t r) const { return source[static_cast<size_t>(r)] >= 0; }
  [[nodiscard]] Matrix<double> product() const {
    auto y = cpu::ref::grouped_gemm_forward(cpu::ref::mxfp8_decode(x), cpu::ref::mxfp8_decode(w), w.rows(), segments);
    if (bias.defined()) cpu::ref::add_grouped_bias(y, to_matrix(bias), {}, segments);
    y.rows = used();
    y.data.resize(static_cast<size_t>(y.rows * y.cols));
    return y;
  }

 private:
  void quantise_x(Context& ctx, int64_t hidden) {
    const Tensor values = random_tensor(ctx, {groups.max_rows(), hidden}, DType::kBF16, 2);
    x = ops::mxfp8_empty(ctx, values.dim(0), hidden, 128, {.rows = true, .columns = false}).rows;
    const ops::MxTensor out{.rows = x, .columns = {}};
    ops::mxfp8_quantize(ctx, {.x = values, .out = out});
    poison_unused_rows(x.elements, groups);
    for (int64_t r = 0; r < groups.max_rows(); ++r)
      for (int64_t g = 0; (r >= used() || !counts(r)) && g < x.num_groups(); ++g)
        x.scales.data<uint8_t>()[g * x.scales.dim(1) + r] = 0xff;
  }
  /// Neighbouring blocks of unlike magnitudes, so that their scales differ.
  static Tensor weights_of(const Context& ctx, const Shape& shape) {
    Tensor w = random_tensor(ctx, shape, DType::kBF16, 3, 0.1);
    for (int64_t i = 0; i < w.numel(); ++i) {
      const int64_t block = i / shape[2] / 128 + i % shape[2] / 128;
      w.data<bf16>()[i] = bf16(static_cast<float>(w.data<bf16>()[i]) * static_cast<float>(1 << block % 3));
    }
    return w;
  }
};

/// For controls: every scale of the weights in its neighbour's place.
inline ops::MxOperand with_rotated_scales(const Context& ctx, ops::MxOperand w) {
  w.scales = copy_of(ctx, w.scales);
  auto bytes = w.scales.span<uint8_t>();
  std::rotate(bytes.begin(), bytes.begin() + 1, bytes.end());
  return w;
}
/// ... and the elements of the busiest expert's rows read one row late.
inline Mxfp8SwigluCase with_shifted_expert(const Context& ctx, Mxfp8SwigluCase in) {
  const auto& counts = in.segments.counts;
  const auto busiest = static_cast<size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
  in.x.elements = copy_of(ctx, in.x.elements);
  auto* first = in.x.elements.data<uint8_t>() + in.segments.starts[busiest] * in.x.depth();
  std::copy_n(first + in.x.depth(), counts[busiest] * in.x.depth(), first);
  return in;
}

struct Mxfp8SwigluForwardOutputs {
  Tensor gate_up;
  ops::MxOperand act;
};
inline Mxfp8SwigluForwardOutputs forward_outputs(const Context& ctx, const Mxfp8SwigluCase& in) {
  const int64_t rows = in.groups.max_rows();
  return {ctx.empty({in.groups.packed_rows(), 2 * in.width}, DType::kBF16),
          ops::mxfp8_empty(ctx, rows, in.width, 128, {.rows = true, .columns = false}).rows};
}

struct Mxfp8SwigluBackwardOutputs {
  ops::MxTensor dgate_up;
  ops::MxOperand act;
  Tensor dweight;
  Tensor dbias = {};  // undefined: not wanted
};
inline Mxfp8SwigluBackwardOutputs backward_outputs(const Context& ctx, const Mxfp8SwigluCase& in) {
  const int64_t rows = in.groups.max_rows();
  return {ops::mxfp8_empty(ctx, rows, 2 * in.width, 128),
          ops::mxfp8_empty(ctx, rows, in.width, 128, {.rows = false, .columns = true}).columns, ctx.empty({rows}, DType::kF32)};
}

/// ||got - want|| / ||magnitude||.
inline testing::AssertionResult close(const char* what, const std::vector<double>& got, const std::vector<double>& want,
                                      const std::vector<double>& magnitude, double tolerance) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += magnitude[i] * magnitude[i];
  }
  const bool ok = difference <= tolerance * tolerance * norm;  // false for NaN
  return (ok ? testing::AssertionSuccess() : testing::AssertionFailure())
         << what << " errs by " << std::sqrt(difference / norm) << " of its norm, allowed " << tolerance;
}
/// bf16 rounds by 2^-9, and the tensor core errs by 6e-4 within a scale group.
constexpr double kRounded = 0x1p-9 + 6e-4;
/// E4M3 rounds by 2^-4, after bf16 by 2^-9; of elements under 2^-6 of their scale each errs by less than 1e-5 of the largest.
constexpr double kQuantised = 0x1p-4 + 0x1p-9 + 1e-4;

/// The first `rows` rows of what an operand stands for, pad rows too.
inline std::vector<double> decoded(const ops::MxOperand& x, int64_t rows, bool turned) {
  auto values = cpu::ref::mxfp8_decode(x);
  if (turned) values = transposed(values);
  values.data.resize(static_cast<size_t>(rows * values.cols));
  return values.data;
}
/// With zeros in pad rows, as float64's results have them.
inline Matrix<double> without_pads(Matrix<double> m, const Mxfp8SwigluCase& in) {
  for (int64_t r = 0; r < in.used(); ++r)
    for (int64_t c = 0; !in.counts(r) && c < m.cols; ++c) m(r, c) = 0;
  return m;
}

inline testing::AssertionResult right(const Mxfp8SwigluCase& in, const Mxfp8SwigluForwardOutputs& got) {
  if (!all_nan(rows_after_use(got.gate_up, in.groups))) return testing::AssertionFailure() << "gate_up goes past the last row";
  const auto gate_up = unpacked(got.gate_up, in.groups), product = without_pads(in.product(), in);
  if (auto ok = close("gate_up", gate_up.data, product.data, product.data, kRounded); !ok) return ok;
  const auto act = cpu::ref::scaled_swiglu_forward(gate_up, in.weight, in.source);
  return close("act", decoded(got.act, in.used(), false), act.data, act.data, kQuantised);
}

inline testing::AssertionResult right(const Mxfp8SwigluCase& in, const Mxfp8SwigluBackwardOutputs& got) {
  const auto gate_up = unpacked(in.gate_up, in.groups), d = without_pads(in.product(), in);
  const auto want = cpu::ref::scaled_swiglu_backward(d, gate_up, in.weight, in.source);
  const auto act = cpu::ref::scaled_swiglu_forward(gate_up, in.weight, in.source);
  std::vector<double> parts(want.dweight.size(), 0.0);  // of dweight, whose parts may cancel
  for (int64_t r = 0; r < in.used(); ++r)
    for (int64_t f = 0; f < in.width; ++f)
      parts[static_cast<size_t>(r)] +=
          std::abs(d(r, f) * gate_up(r, f) * cpu::ref::sigmoid(gate_up(r, f)) * gate_up(r, in.width + f));
  const auto& gradient = want.dgate_up.data;
  constexpr double kOfRounded = kQuantised + 1.1 * kRounded;  // d was rounded before
  if (auto ok = close("dgate_up", decoded(got.dgate_up.rows, in.used(), false), gradient, gradient, kOfRounded); !ok) return ok;
  if (auto ok = close("dgate_up transposed", decoded(got.dgate_up.columns, in.used(), true), gradient, gradient, kOfRounded); !ok)
    return ok;
  if (auto ok = close("act", decoded(got.act, in.used(), true), act.data, act.data, kQuantised); !ok) return ok;
  if (auto ok = close("dweight", to_double(got.dweight.rows(0, in.used())), want.dweight, parts, kRounded); !ok) return ok;
  if (!got.dbias.defined()) return testing::AssertionSuccess();
  const Matrix<double> no_bias(static_cast<int64_t>(in.segments.counts.size()), 2 * in.width);
  const auto sums = cpu::ref::grouped_bias_backward(want.dgate_up, no_bias, {}, in.segments).dbias;
  const auto sizes = cpu::ref::grouped_bias_backward(absolute(want.dgate_up), no_bias, {}, in.segments).dbias;
  return close("dbias", to_double(got.dbias), sums.data, sizes.data, 0x1p-9 + 1.1 * kRounded);
}

}  // namespace cistron::test
