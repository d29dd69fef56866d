// An expert MLP with biases: what it means token by token, its gradients by finite differences of that, and its parameters on
// several ranks. In MXFP8: mxfp8_mlp_test.cpp.
#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "cistron/dist/threads.h"
#include "cistron/nn/sequential.h"
#include "cistron/nn/sharing.h"
#include "tests/ops/mxfp8_support.h"
#include "tests/ops/routing_support.h"

namespace cistron::nn {
namespace {

constexpr int64_t kHidden = 8, kIntermediate = 12, kExperts = 4;
const test::RoutingCase kRouting{9, 2, kExperts, test::Choice::kLastExpertEmpty, 8};

Sequential mlp(dist::Range held = {0, -1}, Bias down = Bias::kScaled) {
  const auto linear = [&](const char* name, int64_t in, int64_t out, Bias bias) {
    return GroupedLinear{{.experts = kExperts,
                          .in = in,
                          .out = out,
                          .name = name,
                          .init_std = 0.4F,
                          .begin = held.begin,
                          .count = held.count,
                          .bias = bias}};
  };
  return Sequential{Gather{}, linear("gate_up", kHidden, 2 * kIntermediate, Bias::kPlain), ScaledSwiGlu{},
                    linear("down", kIntermediate, kHidden, down), Combine{}};
}

/// The values of a parameter that starts at zero, for all ranks; `tensor` holds rows from `first` on.
void set_bias(const Tensor& tensor, const Parameter& parameter, int64_t first) {
  const test::CpuContext ctx;
  const Tensor whole = test::random_tensor(ctx, parameter.shape, DType::kF32, parameter.shape[1]);
  std::copy_n(whole.data<float>() + first * parameter.shape[1], tensor.numel(), tensor.data<float>());
}
void initialise(Context& ctx, LocalParameters& parameters) {
  parameters.initialise(ctx, 5);
  for (auto& entry : parameters.entries())
    if (entry.parameter->name.ends_with(".bias")) set_bias(entry.master, *entry.parameter, entry.first_row());
}

/// The routing, and operands that the reference takes as numbers.
struct Case {
  Tensor choices, weights, x, dy;
  explicit Case(const Context& ctx)
      : choices(test::random_choices(ctx, kRouting.tokens, kRouting.top_k, kExperts, kRouting.choice, 1)),
        weights(test::random_tensor(ctx, choices.shape(), DType::kF32, 2)),
        x(test::random_tensor(ctx, {kRouting.tokens, kHidden}, ctx.activation_dtype(), 3)),
        dy(test::random_tensor(ctx, x.shape(), x.dtype(), 4)) {}

  /// Of experts [first, first + count).
  [[nodiscard]] ops::Groups groups(const Context& ctx, int32_t first = 0, int64_t count = kExperts) const {
    return test::make_groups(ctx, choices, count, weights, kRouting.alignment, 3, first);
  }
};

/// By name: y, dx, dweights and the gradients of the parameters.
using Results = std::map<std::string, std::vector<double>>;

Results run(Context& ctx, const Sequential& experts, LocalParameters& parameters, const Case& c, const ops::Groups& groups) {
  ctx.parameters = &parameters;
  parameters.begin_pass(LocalParameters::Pass::kTrain);
  Saved saved;
  const Tensor y = experts.forward(ctx, c.x, groups, saved);
  const auto [dx, dweights] = experts.backward(ctx, c.dy, saved);
  EXPECT_TRUE(saved.empty());
  parameters.end_pass();
  parameters.finish_gradients();
  Results results{{"y", test::to_double(y)}, {"dx", test::to_double(dx)}, {"dweights", test::to_double(dweights)}};
  for (const auto& entry : parameters.entries()) results[entry.parameter->name] = test::to_double(entry.grad);
  return results;
}
Results run_alone(Context& ctx, const Sequential& experts, const Case& c, const ops::Groups& groups) {
  LocalParameters parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
  initialise(ctx, parameters);
  return run(ctx, experts, parameters, c, groups);
}

/// Every number that the output depends on; y [T, H] = for each token the sum over its choices of weight (down silu(gate) up +
/// b).
struct Definition {
  std::map<std::string, std::vector<double>> values;
  std::vector<int32_t> choices;
  bool scaled = true;

  Definition(const Sequential& experts, const Case& c) : choices(test::ints(c.choices)) {
    test::CpuContext ctx(1, c.x.dtype() == DType::kF32 ? Precision::kF32 : Precision::kBF16);
    LocalParameters parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena});
    initialise(ctx, parameters);
    for (const auto& entry : parameters.entries())
      values[entry.parameter->name] = test::to_double(parameters.weights(*entry.parameter));
    values["x"] = test::to_double(c.x);
    values["weights"] = test::to_double(c.weights);
  }
  [[nodiscard]] double linear(const char* name, int64_t e, int64_t n, int64_t width, const double* in, int64_t depth,
                              double bias_factor) const {
    double sum = bias_factor * values.at(std::string(name) + ".bias")[static_cast<size_t>(e * width + n)];
    for (int64_t k = 0; k < depth; ++k) sum += in[k] * values.at(name)[static_cast<size_t>((e * width + n) * depth + k)];
    return sum;
  }
  [[nodiscard]] std::vector<double> y() const {
    std::vector<double> out(values.at("x").size(), 0.0);
    for (size_t i = 0; i < choices.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / kRouting.top_k;
      const double weight = values.at("weights")[i], *x = values.at("x").data() + token * kHidden;
      std::vector<double> act;
      for (int64_t f = 0; f < kIntermediate; ++f) {
        const double gate = linear("gate_up", choices[i], f, 2 * kIntermediate, x, kHidden, 1);
        const double up = linear("gate_up", choices[i], kIntermediate + f, 2 * kIntermediate, x, kHidden, 1);
        act.push_back(weight * up * gate / (1 + std::exp(-gate)));
      }
      for (int64_t h = 0; h < kHidden; ++h)
        out[static_cast<size_t>(token * kHidden + h)] +=
            linear("down", choices[i], h, kHidden, act.data(), kIntermediate, scaled ? weight : 1);
    }
    return out;
  }
  /// The gradient of sum(dy y).
  [[nodiscard]] std::vector<double> gradient(const std::string& of, const std::vector<double>& dy) {
    const std::vector<double> before = values.at(of);
    const auto loss = [&](const std::vector<double>& v) {
      values[of] = v;
      const auto out = y();
      return std::inner_product(out.begin(), out.end(), dy.begin(), 0.0);
    };
    auto result = test::numeric_gradient(loss, before);
    values[of] = before;
    return result;
  }
};

const std::pair<const char*, const char*> kGradients[] = {
    {"dx", "x"},      {"dweights", "weights"},   {"gate_up", "gate_up"}, {"gate_up.bias", "gate_up.bias"},
    {"down", "down"}, {"down.bias", "down.bias"}};

/// In f32 62 roundings on the longest way (contractions of 8, 12 and 24 terms, SwiGLU's 18), of sums that cancel to a fifth at
/// most. In bf16 six, of x w, act, y's rows, y, d act and d(gate, up), to 2^-9 each.
double tolerance(Precision precision) { return precision == Precision::kF32 ? 5 * 62 * 0x1p-24 : 6 * 0x1p-9; }

TEST(BiasedMlp, IsTheDefinitionAndItsGradients) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16})
    for (const bool scaled : {true, false}) {
      test::CpuContext ctx(2, precision);
      const Case c(ctx);
      const Sequential experts = mlp({0, -1}, scaled ? Bias::kScaled : Bias::kPlain);
      Definition definition(experts, c);
      definition.scaled = scaled;
      Results want{{"y", definition.y()}};
      for (const auto& [result, of] : kGradients) want[result] = definition.gradient(of, test::to_double(c.dy));
      for (const bool fuse : {true, false}) {
        ctx.fuse = fuse;
        EXPECT_EQ(experts.refusals(ctx).empty(), fuse);
        const Results got = run_alone(ctx, experts, c, c.groups(ctx));
        for (const auto& [name, values] : want)
          EXPECT_LE(test::relative_error(got.at(name), values), tolerance(precision)) << name << (fuse ? ", fused" : "");
        // control: the other meaning of down's biases
        definition.scaled = !scaled;
        EXPECT_GT(test::relative_error(got.at("y"), definition.y()), 10 * tolerance(precision));
        EXPECT_GT(test::relative_error(got.at("down.bias"), definition.gradient("down.bias", test::to_double(c.dy))),
                  10 * tolerance(precision));
        definition.scaled = scaled;
      }
      const auto unused = want.at("down.bias").end() - kHidden;  // the last expert got no token
      EXPECT_TRUE(std::all_of(unused, want.at("down.bias").end(), [](double v) { return v == 0; }));
    }
}

TEST(BiasedMlp, RepeatsToTheBit) {
  test::CpuContext ctx(2, Precision::kBF16);
  const Case c(ctx);
  const Sequential experts = mlp();
  EXPECT_EQ(run_alone(ctx, experts, c, c.groups(ctx)), run_alone(ctx, experts, c, c.groups(ctx)));
}

TEST(BiasedMlp, BiasesStartAtZeroInF32AndDoNotDecay) {
  test::CpuContext ctx(1, Precision::kBF16);
  const Sequential experts = mlp();
  LocalParameters parameters(experts.parameters(), ctx.precision,
                             {.parameters = ctx.arena, .gradients = ctx.arena, .optimizer = ctx.arena},
                             {.masters = false, .states = DType::kU8});
  parameters.initialise(ctx, 5);
  for (const char* name : {"gate_up.bias", "down.bias"}) {
    const auto& entry = parameters.find(name);
    EXPECT_EQ(entry.for_update(0.1).weight_decay, 0);
    EXPECT_EQ(parameters.weights(*entry.parameter).dtype(), DType::kF32);
    EXPECT_EQ(entry.m.dtype(), DType::kF32);
    EXPECT_TRUE(test::within(entry.master, std::vector<double>(static_cast<size_t>(entry.master.numel()), 0.0), 0.0));
  }
}

// Each half works on the rows of its own experts; what a token gets is the sum.
TEST(BiasedMlp, ExpertsOnTwoRanksAreThoseOfOne) {
  test::CpuContext ctx(2);
  const Case c(ctx);
  const Results whole = run_alone(ctx, mlp(), c, c.groups(ctx));
  constexpr int64_t kHalf = kExperts / 2;
  const Results parts[] = {run_alone(ctx, mlp({0, kHalf}), c, c.groups(ctx, 0, kHalf)),
                           run_alone(ctx, mlp({kHalf, kHalf}), c, c.groups(ctx, kHalf, kHalf))};
  for (const auto& [name, want] : whole) {
    std::vector<double> got = parts[0].at(name);
    const std::vector<double>& other = parts[1].at(name);
    if (name == "y" || name == "dx" || name == "dweights")
      std::ranges::transform(got, other, got.begin(), std::plus<>());
    else
      got.insert(got.end(), other.begin(), other.end());
    EXPECT_LE(test::relative_error(got, want), 1e-6) << name;
  }
}

// All ranks have the same tokens: the sum over ranks is three times one's.
TEST(BiasedMlp, GradientsOnShardsAndCopiesAreThoseOfOneRank) {
  test::CpuContext ctx(1);
  const Case c(ctx);
  const Results alone = run_alone(ctx, mlp(), c, c.groups(ctx));
  for (const bool fsdp : {true, false})
    dist::run_ranks(3, [&](dist::Communicator& world) {
      test::CpuContext mine(1);
      const dist::Mesh mesh(world, {3, 1});
      const Case same(mine);
      const Sequential experts = mlp();
      const auto parameters = make_parameters(experts.parameters(), mine.precision,
                                              {.parameters = mine.arena, .gradients = mine.arena, .gathered = mine.arena},
                                              {.shape = mesh.shape(), .rank = world.rank(), .fsdp = fsdp}, &mesh);
      initialise(mine, *parameters);
      const Results got = run(mine, experts, *parameters, same, same.groups(mine));
      EXPECT_LE(test::relative_error(got.at("y"), alone.at("y")), 1e-6);
      for (const auto& entry : parameters->entries()) {
        const auto& name = entry.parameter->name;
        const int64_t width = row_width(entry.parameter->shape), first = entry.rows.held.begin * width;
        for (int64_t i = 0; i < entry.rows.held.count * width; ++i)
          ASSERT_NEAR(got.at(name)[static_cast<size_t>(i)], 3 * alone.at(name)[static_cast<size_t>(first + i)], 1e-4) << name;
      }
    });
}

}  // namespace
}  // namespace cistron::nn
