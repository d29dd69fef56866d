// An expert MLP with biases on the card, one by one and fused, against the CPU's.
#include <map>

#include "cistron/nn/local_parameters.h"
#include "cistron/nn/sequential.h"
#include "tests/cuda/support.h"
#include "tests/ops/bias_cases.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron::test {
namespace {

using nn::Bias, nn::GroupedLinear, nn::Sequential;

constexpr int64_t kHidden = 256, kIntermediate = 384;
const RoutingCase kRouting{300, 2, 6, Choice::kLastExpertEmpty, 128};

Sequential mlp() {
  return Sequential{nn::Gather{},
                    GroupedLinear{{.experts = kRouting.experts,
                                   .in = kHidden,
                                   .out = 2 * kIntermediate,
                                   .name = "gate_up",
                                   .init_std = 0.05F,
                                   .mx_sections = 2,
                                   .bias = Bias::kPlain}},
                    nn::ScaledSwiGlu{},
                    GroupedLinear{{.experts = kRouting.experts,
                                   .in = kIntermediate,
                                   .out = kHidden,
                                   .name = "down",
                                   .init_std = 0.05F,
                                   .bias = Bias::kScaled}},
                    nn::Combine{}};
}

class CudaBiasedMlp : public OnCard {
 protected:
  using Results = std::map<std::string, std::vector<double>>;

  /// y, dx, dweights and the parameters' gradients of two passes, the second of which adds.
  Results run(Context& ctx, bool rotate_biases = false) {
    const Sequential experts = mlp();
    nn::LocalParameters parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
    ctx.parameters = &parameters;
    parameters.initialise(ctx, 5);
    for (auto& entry : parameters.entries()) {
      if (!entry.parameter->name.ends_with(".bias")) continue;
      const Tensor values = random_tensor(cpu_, entry.master.shape(), DType::kF32, 8);
      copy_to(ctx, entry.master, rotate_biases ? of_wrong_experts(cpu_, values) : values);
    }
    const ops::Groups routed = groups_of(cpu_, kRouting, 1);
    const ops::Groups groups = ctx.device.is_cuda() ? device(routed) : routed;
    Results results;
    for (int pass = 0; pass < 2; ++pass) {
      nn::Saved saved;
      const Tensor y =
          experts.forward(ctx, there(ctx, random_tensor(cpu_, {kRouting.tokens, kHidden}, DType::kBF16, 6)), groups, saved);
      const auto [dx, dweights] = experts.backward(ctx, there(ctx, random_tensor(cpu_, y.shape(), DType::kBF16, 7)), saved);
      results["y"] = here(ctx, y);
      results["dx"] = here(ctx, dx);
      results["dweights"] = here(ctx, dweights);
    }
    for (const auto& entry : parameters.entries()) results[entry.parameter->name] = here(ctx, entry.grad);
    return results;
  }

 private:
  static void copy_to(const Context& ctx, const Tensor& to, const Tensor& from) {
    if (ctx.device.is_cuda()) return copy_to_device(to, from);
    std::copy_n(from.data<float>(), from.numel(), to.data<float>());
  }
  [[nodiscard]] Tensor there(const Context& ctx, const Tensor& host) const { return ctx.device.is_cuda() ? device(host) : host; }
  [[nodiscard]] std::vector<double> here(const Context& ctx, const Tensor& t) const {
    return to_double(ctx.device.is_cuda() ? host(t) : t);
  }
};

// Six roundings to bf16 of a path differ at most, by 2^-8 each: 2.4e-2. In MXFP8 few elements fall to another side of e4m3's
// boundaries, which the same covers (nn/mxfp8_mlp_test.cpp).
constexpr double kTolerance = 6 * 0x1p-8;

TEST_F(CudaBiasedMlp, IsTheCpus) {
  for (const Precision precision : {Precision::kBF16, Precision::kMxfp8, Precision::kMxfp8Group32}) {
    cpu_.precision = cuda_.precision = precision;
    cpu_.fuse = true;
    const Results want = run(cpu_), wrong = run(cpu_, true);
    for (const bool fuse : {false, true}) {
      cuda_.fuse = fuse;
      const Results got = run(cuda_);
      for (const auto& [name, values] : want)
        EXPECT_LE(relative_error(got.at(name), values), kTolerance) << name << (fuse ? ", fused" : "");
      EXPECT_GT(relative_error(got.at("y"), wrong.at("y")), 10 * kTolerance);
      EXPECT_EQ(got, run(cuda_));  // to the bit
    }
    std::printf("%s\n", mlp().plan(cuda_).c_str());
  }
}

}  // namespace
}  // namespace cistron::test
