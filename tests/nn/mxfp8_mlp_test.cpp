// An expert MLP in MXFP8, forward and backward, against float64 on operands that the reference quantiser made: every copy from
// the bf16 values, at the places where docs/mxfp8.md says so.
#include <gmock/gmock.h>

#include <array>

#include "cistron/cpu/ref/gather.h"
#include "cistron/cpu/ref/grouped_bias.h"
#include "cistron/cpu/ref/swiglu.h"
#include "cistron/cuda/doctor.h"
#include "cistron/nn/linear.h"
#include "cistron/nn/local_parameters.h"
#include "cistron/nn/sequential.h"
#include "tests/ops/mxfp8_support.h"
#include "tests/ops/routing_support.h"

namespace cistron::nn {
namespace {

using cpu::ref::Matrix;
using test::RoutingCase;
using testing::HasSubstr;

constexpr int64_t kHidden = 128, kIntermediate = 128;

Sequential mlp(int64_t experts, bool biased = false) {
  return Sequential{Gather{},
                    GroupedLinear{{.experts = experts,
                                   .in = kHidden,
                                   .out = 2 * kIntermediate,
                                   .name = "gate_up",
                                   .mx_sections = 2,
                                   .bias = biased ? Bias::kPlain : Bias::kNone}},
                    ScaledSwiGlu{},
                    GroupedLinear{{.experts = experts,
                                   .in = kIntermediate,
                                   .out = kHidden,
                                   .name = "down",
                                   .bias = biased ? Bias::kScaled : Bias::kNone}},
                    Combine{}};
}

/// y, dx, dweights, and the gradients of both weights and, where there are some, of both biases.
using Results = std::vector<std::vector<double>>;
const char* const kNames[] = {"y", "dx", "dweights", "d gate_up", "d down", "d gate_up.bias", "d down.bias"};

struct Case {
  Case(Context& ctx, const RoutingCase& c, bool biased = false)
      : experts(mlp(c.experts, biased)),
        parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena}),
        groups(test::groups_of(ctx, c, 1)),
        x(test::random_tensor(ctx, {c.tokens, kHidden}, DType::kBF16, 6)),
        dy(test::random_tensor(ctx, x.shape(), DType::kBF16, 7)) {
    ctx.parameters = &parameters;
    parameters.initialise(ctx, 5);
    for (const char* name : {"gate_up.bias", "down.bias"})
      if (biased) parameters.find(name).master = test::random_tensor(ctx, parameters.find(name).master.shape(), DType::kF32, 8);
  }
  [[nodiscard]] bool biased() const { return parameters.entries().size() > 2; }
  [[nodiscard]] const Tensor& master(const char* name) const {
    return std::ranges::find_if(parameters.entries(), [&](const auto& entry) { return entry.parameter->name == name; })->master;
  }
  Results run(Context& ctx) {
    parameters.begin_step();
    Saved saved;
    const Tensor y = experts.forward(ctx, x, groups, saved);
    const auto [dx, dweights] = experts.backward(ctx, dy, saved);
    EXPECT_TRUE(saved.empty());
    Results results;
    for (const Tensor& t : {y, dx, dweights, parameters.find("gate_up").grad, parameters.find("down").grad})
      results.push_back(test::to_double(t));
    for (const char* name : {"gate_up.bias", "down.bias"})
      if (biased()) results.push_back(test::to_double(parameters.find(name).grad));
    return results;
  }

  Sequential experts;
  LocalParameters parameters;
  ops::Groups groups;
  Tensor x, dy;
};

/// Two unequal scales exchanged, of x along its rows or of wgrad's operands along their columns.
/// ..., or down's biases without the routing weights.
enum class Mistake : uint8_t { kNone, kSwappedRows, kSwappedColumns, kUnscaledBias };

/// The definition, in float64 but for the roundings to bf16 between operations.
class Oracle {
 public:
  Oracle(Context& ctx, const Case& c, Mistake mistake)
      : ctx_(ctx), c_(c), group_(ctx.mx_group()), mistake_(mistake), source_(test::used_source_rows(c.groups)) {
    weight_ = test::to_double(c.groups.weight);
    weight_.resize(source_.size());
    for (const int32_t start : test::ints(c.groups.starts)) segments_.starts.push_back(start);
    for (const int32_t count : test::ints(c.groups.counts)) segments_.counts.push_back(count);
  }

  Results run() {
    const ops::MxTensor w1 = quantized(c_.master("gate_up"), 2), w2 = quantized(c_.master("down"), 1);
    const auto b1 = bias("gate_up.bias", 2 * kIntermediate), b2 = bias("down.bias", kHidden);
    const std::vector<double> scale = mistake_ == Mistake::kUnscaledBias ? std::vector<double>{} : weight_;
    const auto x = cpu::ref::gather(test::to_matrix(c_.x), source_), dy = cpu::ref::gather(test::to_matrix(c_.dy), source_);
    const auto h = product(along_rows(x, mistake_ == Mistake::kSwappedRows), w1.rows, b1, {});
    const auto act = rounded(cpu::ref::scaled_swiglu_forward(h, weight_, source_));
    const auto rows = product(along_rows(act), w2.rows, b2, scale);
    const auto dact = product(along_rows(dy), w2.columns);
    auto [dh_exact, dweight] = cpu::ref::scaled_swiglu_backward(dact, h, weight_, source_);
    const auto dh = rounded(dh_exact);
    const auto of_b1 = cpu::ref::grouped_bias_backward(dh, b1, {}, segments_),
               of_b2 = cpu::ref::grouped_bias_backward(dy, b2, scale, segments_);
    for (size_t r = 0; r < dweight.size(); ++r) dweight[r] += of_b2.dweight[r];
    Results all{combined(rows), combined(product(along_rows(dh), w1.columns)), by_choice(dweight), wgrad(dh, x), wgrad(dy, act)};
    if (c_.biased()) all.insert(all.end(), {of_b1.dbias.data, of_b2.dbias.data});
    return all;
  }

 private:
  static Matrix<double> rounded(Matrix<double> m) {
    for (double& v : m.data) v = static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))));
    return m;
  }
  ops::MxTensor quantized(const Tensor& w, int64_t sections) const {
    const auto out = ops::mxfp8_empty_weights(ctx_, w.shape(), group_, sections);
    test::reference_quantize_weights(w, out);
    return out;
  }
  Matrix<double> along_rows(const Matrix<double>& x, bool swap_scales = false) const {
    const auto out = ops::mxfp8_empty(ctx_, x.rows, x.cols, group_, {.columns = false}).rows;
    cpu::ref::mxfp8_encode(out, x.rows, x.cols, [&](int64_t, int64_t r, int64_t k) { return x(r, k); });
    auto* scales = out.scales.data<uint8_t>();
    for (int64_t r = 1; swap_scales && r < segments_.counts[busiest()]; ++r)
      if (uint8_t &a = scales[segments_.starts[busiest()]], &b = scales[segments_.starts[busiest()] + r]; a != b) {
        std::swap(a, b);
        break;
      }
    return cpu::ref::mxfp8_decode(out);
  }
  Matrix<double> along_columns(const Matrix<double>& x) const {
    const auto out = ops::mxfp8_empty(ctx_, x.rows, x.cols, group_, {.rows = false}).columns;
    cpu::ref::mxfp8_encode(out, x.cols, x.rows, [&](int64_t, int64_t r, int64_t k) { return x(k, r); });
    auto* scales = out.scales.data<uint8_t>() + segments_.starts[busiest()] / 128 * out.scales.dim(1);
    if (mistake_ == Mistake::kSwappedColumns)
      std::iter_swap(scales, std::find_if(scales, scales + x.cols - 1, [&](uint8_t b) { return b != *scales; }));
    return test::transposed(cpu::ref::mxfp8_decode(out));
  }
  Matrix<double> product(const Matrix<double>& x, const ops::MxOperand& w) const {
    return product(x, w, Matrix<double>(w.elements.dim(0), w.rows()), {});
  }
  Matrix<double> product(const Matrix<double>& x, const ops::MxOperand& w, const Matrix<double>& bias,
                         const std::vector<double>& scale) const {
    auto y = cpu::ref::grouped_gemm_forward(x, cpu::ref::mxfp8_decode(w), w.rows(), segments_);
    cpu::ref::add_grouped_bias(y, bias, scale, segments_);
    return rounded(y);
  }
  [[nodiscard]] Matrix<double> bias(const char* name, int64_t width) const {
    return c_.biased() ? test::to_matrix(c_.master(name)) : Matrix<double>(c_.groups.num_experts(), width);
  }
  std::vector<double> wgrad(const Matrix<double>& dy, const Matrix<double>& x) const {
    if (group_ == 32) return cpu::ref::grouped_gemm_wgrad(dy, x, segments_).data;  // in bf16
    return cpu::ref::grouped_gemm_wgrad(along_columns(dy), along_columns(x), segments_).data;
  }
  std::vector<double> combined(const Matrix<double>& rows) const {
    const auto choices = test::ints(c_.groups.token_rows);
    Matrix<double> out(c_.x.dim(0), rows.cols);
    cpu::ref::combine(rows, Matrix<int32_t>(c_.groups.num_tokens(), c_.groups.top_k(), choices), out);
    return rounded(out).data;
  }
  std::vector<double> by_choice(const std::vector<double>& of_rows) const {
    std::vector<double> out;
    for (const int32_t row : test::ints(c_.groups.token_rows)) out.push_back(of_rows[static_cast<size_t>(row)]);
    return out;
  }
  [[nodiscard]] size_t busiest() const {
    return static_cast<size_t>(std::ranges::max_element(segments_.counts) - segments_.counts.begin());
  }

  Context& ctx_;
  const Case& c_;
  int64_t group_;
  Mistake mistake_;
  std::vector<int32_t> source_;
  std::vector<double> weight_;
  cpu::ref::Segments segments_;
};

// Both sides round in the same places; a value that lies within an f32 error of a boundary may fall to either side. That is 9 x
// 2^-24 against steps of 2^-8: 3 in 10,000 values, each then wrong by 2^-8, and one in 16 of those by a step of e4m3, 2^-3:
// together sqrt(3e-4 / 16) x 2^-3 = 5e-4 of a tensor's norm. Twice over, and an eighth of what quantising costs (3.8e-2).
constexpr double kTolerance = 4e-3;

const std::vector<RoutingCase> kCases{{90, 2, 4, test::Choice::kLastExpertEmpty, 128}, {150, 1, 2, test::Choice::kRandom, 128}};

class Mxfp8Mlp : public testing::TestWithParam<Precision> {
 protected:
  test::CpuContext ctx_{2, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(ScaleGroups, Mxfp8Mlp, testing::Values(Precision::kMxfp8, Precision::kMxfp8Group32));

TEST_P(Mxfp8Mlp, IsTheDefinition) {
  for (const RoutingCase& c : kCases)
    for (const bool biased : {false, true}) {
      Case routed(ctx_, c, biased);
      const Results want = Oracle(ctx_, routed, Mistake::kNone).run();
      for (const bool fuse : {false, true}) {
        ctx_.fuse = fuse;
        const Results got = routed.run(ctx_);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(test::relative_error(got[i], want[i]), kTolerance) << kNames[i] << (fuse ? ", fused" : ", one by one");
      }
    }
}

TEST_P(Mxfp8Mlp, FusedHasTheBitsOfOneByOne) {
  for (const RoutingCase& c : kCases)
    for (const bool biased : {false, true}) {
      Case routed(ctx_, c, biased);
      EXPECT_EQ(routed.experts.refusals(ctx_).empty(), GetParam() == Precision::kMxfp8);
      const Results fused = routed.run(ctx_);
      ctx_.fuse = false;
      const Results unfused = routed.run(ctx_);
      for (size_t i = 0; i < fused.size(); ++i) EXPECT_TRUE(i == 2 || fused[i] == unfused[i]) << kNames[i];
      EXPECT_LE(test::relative_error(fused[2], unfused[2]), 1e-4);  // summed in another order
      ctx_.fuse = true;
    }
}

TEST_P(Mxfp8Mlp, WrongOnesAreNoticed) {
  Case routed(ctx_, kCases[0]);
  const Results got = routed.run(ctx_), swapped = Oracle(ctx_, routed, Mistake::kSwappedRows).run();
  EXPECT_GT(test::relative_error(got[0], swapped[0]), kTolerance);
  Case with_biases(ctx_, kCases[0], true);
  const Results biased = with_biases.run(ctx_), unscaled = Oracle(ctx_, with_biases, Mistake::kUnscaledBias).run();
  for (const size_t i : {0U, 6U}) EXPECT_GT(test::relative_error(biased[i], unscaled[i]), kTolerance) << kNames[i];
  if (GetParam() == Precision::kMxfp8Group32) return;  // no column-wise copies
  const Results columns = Oracle(ctx_, routed, Mistake::kSwappedColumns).run();
  EXPECT_GT(test::relative_error(got[3], columns[3]), kTolerance);
  EXPECT_GT(test::relative_error(got[4], columns[4]), kTolerance);
}

TEST_P(Mxfp8Mlp, RepeatsToTheBitAndAccumulates) {
  Case routed(ctx_, kCases[0], true);
  const Results once = routed.run(ctx_);
  EXPECT_EQ(once, routed.run(ctx_));
  ThreadPool one(1);
  ctx_.pool = &one;
  EXPECT_EQ(once, routed.run(ctx_));
  Saved saved;
  routed.experts.forward(ctx_, routed.x, routed.groups, saved);
  routed.experts.backward(ctx_, routed.dy, saved);
  for (const size_t result : {3U, 5U, 6U}) {
    const auto twice = test::to_double(routed.parameters.find(kNames[result] + 2).grad);  // behind "d "
    for (size_t i = 0; i < twice.size(); ++i)
      ASSERT_NEAR(twice[i], 2 * once[result][i], 1e-5 * std::abs(once[result][i]) + 1e-6) << kNames[result];
  }
}

TEST_P(Mxfp8Mlp, KeepsNoMoreThanBf16) {
  if (const auto survey = cuda::survey_cards(); survey.built && survey.cards.empty())
    GTEST_SKIP() << "planning for a card asks the driver which it is: " << survey.problem;
  Saved in_bf16, in_mxfp8;
  for (const Precision precision : {Precision::kBF16, GetParam()}) {
    Context ctx = test::meta_context(precision);
    ctx.planned = {DeviceKind::kCuda};  // segments at multiples of 128 in both
    ctx.fuse = false;
    const Sequential experts = mlp(8);
    LocalParameters parameters(experts.parameters(), precision, {.parameters = ctx.arena, .gradients = ctx.arena});
    ctx.parameters = &parameters;
    experts.forward(ctx, ctx.empty({100, kHidden}), ops::empty_groups(ctx, 100, 2, 8),
                    precision == Precision::kBF16 ? in_bf16 : in_mxfp8);
  }
  const int64_t rows = 1152;  // of 200 choices and 8 experts: 200 + 8 x 127, rounded down
  const int64_t inputs = rows * (kHidden + kIntermediate);
  const int64_t scales = rows / 128 * (kHidden + kIntermediate);
  const int64_t less = GetParam() == Precision::kMxfp8 ? inputs - scales : 0;
  EXPECT_EQ(in_bf16.bytes() - in_mxfp8.bytes(), less);
}

// A single layer is a grouped one with one expert, for numbers of rows that are multiples of nothing.
TEST_P(Mxfp8Mlp, ALinearLayerIsOneExpert) {
  constexpr int64_t kRows = 90, kOut = 256;
  const Linear linear{{.name = "w", .in = kHidden, .out = kOut, .mxfp8 = true}};
  const GroupedLinear grouped{{.experts = 1, .in = kHidden, .out = kOut, .name = "w"}};
  const ops::Groups groups = test::groups_of(ctx_, {kRows, 1, 1, test::Choice::kRandom, 128}, 1);
  const auto run = [&](const Parameter& weight, const Tensor& x, const Tensor& dy, auto forward, auto backward) {
    LocalParameters parameters({&weight}, ctx_.precision, {.parameters = ctx_.arena, .gradients = ctx_.arena});
    ctx_.parameters = &parameters;
    parameters.initialise(ctx_, 5);
    Saved saved;
    const Tensor y = forward(x, saved), dx = backward(dy, saved);
    return std::array{test::to_double(y.rows(0, kRows)), test::to_double(dx.rows(0, kRows)),
                      test::to_double(parameters.entries()[0].grad)};
  };
  const auto values = [&](int64_t rows, int64_t width, uint64_t seed) {
    const Tensor x = ctx_.empty({rows, width});
    std::fill_n(x.data<bf16>(), x.numel(), bf16(0.0F));
    const Tensor random = test::random_tensor(ctx_, {kRows, width}, DType::kBF16, seed);
    std::copy_n(random.data<bf16>(), random.numel(), x.data<bf16>());
    return x;
  };
  Tensor unused;
  const auto one = run(
      linear.weight(), values(kRows, kHidden, 2), values(kRows, kOut, 3),
      [&](const Tensor& x, Saved& saved) { return linear.forward(ctx_, x, saved); },
      [&](const Tensor& dy, Saved& saved) { return linear.backward(ctx_, dy, saved); });
  const auto expert = run(
      grouped.weight(), values(groups.max_rows(), kHidden, 2), values(groups.max_rows(), kOut, 3),
      [&](const Tensor& x, Saved& saved) { return grouped.forward(ctx_, x, groups, saved); },
      [&](const Tensor& dy, Saved& saved) { return grouped.backward(ctx_, dy, groups, saved, unused); });
  EXPECT_EQ(one, expert);
  EXPECT_NE(one[0], std::vector<double>(one[0].size(), 0.0));
}

std::string refused(const Precision precision, GroupedLinear gate_up, GroupedLinear down) {
  const Sequential experts{Gather{}, std::move(gate_up), ScaledSwiGlu{}, std::move(down), Combine{}};
  Context ctx;
  ctx.precision = precision;
  return fmt::format("{}", fmt::join(experts.refusals(ctx), "\n"));
}

TEST(FusedMxMlp, NearMissesSayWhatRefused) {
  const auto up = [](int64_t width, int64_t sections) {
    return GroupedLinear{{.experts = 2, .in = 128, .out = 2 * width, .name = "gate_up", .mx_sections = sections}};
  };
  const auto down = [](int64_t width, int64_t sections) {
    return GroupedLinear{{.experts = 2, .in = width, .out = 128, .name = "down", .mx_sections = sections}};
  };
  EXPECT_EQ(refused(Precision::kMxfp8, up(256, 2), down(256, 1)), "");
  EXPECT_EQ(refused(Precision::kBF16, up(256, 2), down(256, 1)), "");
  EXPECT_THAT(refused(Precision::kMxfp8, up(256, 1), down(256, 1)), HasSubstr("fused MXFP8 MLP: not fused, gate and up are"));
  EXPECT_THAT(refused(Precision::kMxfp8, up(256, 2), down(256, 0)),
              HasSubstr("fused MXFP8 MLP: not fused, down is not in MXFP8"));
  EXPECT_THAT(refused(Precision::kMxfp8, up(256, 2), down(256, 0)), HasSubstr("fused MLP: not fused, its weights are in MXFP8"));
  EXPECT_THAT(refused(Precision::kMxfp8, up(160, 2), down(160, 1)), HasSubstr("widths 128 and 160 are not multiples of 128"));
  EXPECT_THAT(refused(Precision::kMxfp8, up(256, 2), down(128, 1)), HasSubstr("not those of one MLP"));
  EXPECT_THAT(refused(Precision::kMxfp8Group32, up(256, 2), down(256, 1)), HasSubstr("scale groups of 32"));
}

TEST(FusedMxMlp, KeepsItsInputAndTheFirstProduct) {
  Context ctx = test::meta_context(Precision::kMxfp8);
  const Sequential experts = mlp(8);
  LocalParameters parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
  ctx.parameters = &parameters;
  EXPECT_THAT(experts.plan(ctx), HasSubstr("FusedMxMlp 8 x 128 -> 128 -> 128: fuses 5"));
  const ops::Groups groups = ops::empty_groups(ctx, 100, 2, 8);
  Saved groups_alone, saved;
  groups_alone.push("groups", groups);
  experts.forward(ctx, ctx.empty({100, kHidden}), groups, saved);
  EXPECT_EQ(saved.bytes() - groups_alone.bytes(), 2 * (100 * kHidden + 200 * 2 * kIntermediate));
}

TEST_P(Mxfp8Mlp, OfAWeightThatIsKeptInBf16IsTheBf16One) {
  const auto run = [](Precision precision) {
    test::CpuContext ctx(2, precision);
    const GroupedLinear linear{{.experts = 2, .in = 128, .out = 128, .mx_sections = 0}};
    LocalParameters parameters(linear.parameters(), precision, {.parameters = ctx.arena, .gradients = ctx.arena});
    ctx.parameters = &parameters;
    parameters.initialise(ctx, 5);
    Saved saved;
    const ops::Groups groups = test::groups_of(ctx, {40, 1, 2, test::Choice::kRandom, 128}, 1);
    const Tensor x = test::random_tensor(ctx, {groups.max_rows(), 128}, DType::kBF16, 3);
    const Tensor y = linear.forward(ctx, x, groups, saved);
    EXPECT_EQ(y.dtype(), DType::kBF16);
    return test::rows_in_use(y, {{0}, {test::ints(groups.counts)[0]}});
  };
  EXPECT_EQ(run(GetParam()), run(Precision::kBF16));
}

}  // namespace
}  // namespace cistron::nn
