#include "cistron/ops/swiglu.h"

#include "cistron/cpu/ref/swiglu.h"
#include "tests/cuda/support.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {
namespace {

using cpu::ref::Matrix;

constexpr double kU = 0x1p-24;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
constexpr int64_t kWidths[] = {1, 17, 80, 256, 4104};

/// Relative error of sigmoid(g): f32's own exp, sum and quotient; bf16's exp errs by (|g| + 4) units in its last place, the
/// quotient by two.
double of_sigmoid(double g, DType dtype) { return dtype == DType::kF32 ? 6 * kU : (2 * std::abs(g) + 14) * kU; }
double output_rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }

class CudaSwiglu : public OnCard {};

/// Operands with poison wherever nobody may look, and the same for the reference, cut at the end.
struct Operands {
  ops::Groups groups;
  Tensor gate_up, dy;
  std::vector<int32_t> source_row;
  Matrix<double> g, d;
  std::vector<double> w;

  Operands(const Context& ctx, const RoutingCase& c, int64_t width, DType dtype)
      : groups(groups_of(ctx, c, 1)),
        gate_up(random_tensor(ctx, {groups.max_rows(), 2 * width}, dtype, 2, 3.0)),
        dy(random_tensor(ctx, {groups.max_rows(), width}, dtype, 3)),
        source_row(used_source_rows(groups)) {
    poison_unused_rows(gate_up, groups);
    poison_unused_rows(dy, groups);
    g = to_matrix(gate_up.rows(0, used()));
    d = to_matrix(dy.rows(0, used()));
    w = to_double(groups.weight.rows(0, used()));
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source_row.size()); }
  [[nodiscard]] bool is_pad(int64_t r) const { return source_row[static_cast<size_t>(r)] < 0; }
};

void expect_untouched(const Tensor& t, int64_t used) {
  for (double v : to_double(t.rows(used, t.dim(0) - used))) ASSERT_TRUE(std::isnan(v));
}

TEST_F(CudaSwiglu, Forward) {
  for (const auto& c : routing_cases())
    for (DType dtype : kFloats)
      for (int64_t width : kWidths) {
        if (width > 1000 && c.alignment == 128) continue;
        const Operands in(cpu_, c, width, dtype);
        const Tensor out = twice([&] {
                             const Tensor y = poisoned_there(in.dy.shape(), dtype);
                             ops::scaled_swiglu_forward(cuda_, {device(in.gate_up), device(in.groups), y});
                             return std::vector{y};
                           }).front();
        auto want = cpu::ref::scaled_swiglu_forward(in.g, in.w, in.source_row);
        std::vector<double> bound;
        for (int64_t r = 0; r < want.rows; ++r)
          for (int64_t f = 0; f < width; ++f)
            bound.push_back(in.is_pad(r) ? 0.0
                                         : std::abs(want(r, f)) *
                                               (of_sigmoid(in.g(r, f), dtype) + 3 * kU + output_rounding(dtype)) * 1.01);
        EXPECT_TRUE(within(out.rows(0, in.used()), want.data, bound));
        expect_untouched(out, in.used());
        want(0, 0) /= in.w[0];  // control: a row without its weight
        EXPECT_FALSE(within(out.rows(0, in.used()), want.data, bound));
      }
}

TEST_F(CudaSwiglu, Backward) {
  for (const auto& c : routing_cases())
    for (DType dtype : kFloats)
      for (int64_t width : kWidths) {
        if (width > 1000 && c.alignment == 128) continue;
        const Operands in(cpu_, c, width, dtype);
        const auto results = twice([&] {
          const Tensor dgate_up = poisoned_there(in.gate_up.shape(), dtype),
                       dweight = poisoned_there(in.groups.weight.shape(), DType::kF32);
          ops::scaled_swiglu_backward(cuda_, {device(in.dy), device(in.gate_up), device(in.groups), dgate_up, dweight});
          return std::vector{dgate_up, dweight};
        });
        auto want = cpu::ref::scaled_swiglu_backward(in.d, in.g, in.w, in.source_row);
        Matrix<double> bound(in.used(), 2 * width);
        std::vector<double> dweight_bound(in.w.size(), 0.0);
        const double summation = (static_cast<double>(width) / 32 + 14) * kU;  // a warp at least shares a row
        for (int64_t r = 0; r < in.used(); ++r)
          for (int64_t f = 0; f < width && !in.is_pad(r); ++f) {
            const double g = in.g(r, f), u = in.g(r, width + f), dy = in.d(r, f), sig = cpu::ref::sigmoid(g);
            const double w = in.w[static_cast<size_t>(r)], rel = of_sigmoid(g, dtype);
            // 1 - sigmoid errs by sigmoid's error, absolutely; times g, plus 1, times four factors
            bound(r, f) = (2 * rel + 6 * kU) * std::abs(dy * w * u) * sig * (1 + std::abs(g)) +
                          output_rounding(dtype) * std::abs(want.dgate_up(r, f)) * 1.01;
            bound(r, width + f) = std::abs(want.dgate_up(r, width + f)) * (rel + 3 * kU + output_rounding(dtype)) * 1.01;
            dweight_bound[static_cast<size_t>(r)] += (summation + rel + 3 * kU) * std::abs(dy * g * sig * u);
          }
        EXPECT_TRUE(within(results[0].rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_TRUE(within(results[1].rows(0, in.used()), want.dweight, dweight_bound));
        expect_untouched(results[0], in.used());
        expect_untouched(results[1], in.used());
        // controls: silu's derivative without its second term, dweight with the weight in it
        want.dgate_up(0, 0) = in.d(0, 0) * in.w[0] * in.g(0, width) * cpu::ref::sigmoid(in.g(0, 0));
        want.dweight[0] *= in.w[0];
        EXPECT_FALSE(within(results[0].rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_FALSE(within(results[1].rows(0, in.used()), want.dweight, dweight_bound));
      }
}

TEST_F(CudaSwiglu, LargeGatesNeitherOverflowNorLoseTheirSign) {
  const Tensor experts = tensor_of(cpu_, {1, 1}, DType::kI32, {0}), weight = tensor_of(cpu_, {1, 1}, DType::kF32, {1});
  const ops::Groups groups = device(make_groups(cpu_, experts, 1, weight, 1, 0));
  for (DType dtype : kFloats) {
    const Tensor gate_up = device(tensor_of(cpu_, {1, 8}, dtype, {-1000, -95, 95, 1000, 1, 1, 1, 1}));
    const Tensor y = poisoned_there({1, 4}, dtype), dgate_up = poisoned_there({1, 8}, dtype);
    const Tensor dy = device(tensor_of(cpu_, {1, 4}, dtype, {1, 1, 1, 1})), dweight = poisoned_there({1}, DType::kF32);
    ops::scaled_swiglu_forward(cuda_, {gate_up, groups, y});
    ops::scaled_swiglu_backward(cuda_, {dy, gate_up, groups, dgate_up, dweight});
    EXPECT_TRUE(within(host(y), {0, 0, 95, 1000}, 1e-36));
    EXPECT_TRUE(within(host(dgate_up), {0, 0, 1, 1, 0, 0, 95, 1000}, 1e-36));
  }
}

}  // namespace
}  // namespace cistron::test
