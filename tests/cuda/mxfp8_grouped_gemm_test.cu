// The MXFP8 grouped products on Hopper against float64, of the decoded operands, on the card.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "tests/cuda/mx_operands.cuh"
#include "tests/cuda/reference.cuh"

namespace cistron::test {
namespace {

struct Case {
  bool wgrad = false;
  bool accumulate = false;
  int64_t group = 128;
  int64_t sections = 1;
  std::vector<int32_t> counts;
  int64_t n = 0, k = 0;  // columns of out; contraction, or for wgrad rows of out
  DType out = DType::kF32;
};

std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << (c.wgrad ? "wgrad" : "rows") << (c.accumulate ? " accumulating" : "") << " group " << c.group << " sections "
                << c.sections << " counts[0] " << c.counts[0] << " of " << c.counts.size() << " n " << c.n << " k " << c.k;
}

class Sm90Mxfp8GroupedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA card here: the kernels were not run";
    if (cuda::compute_capability(ctx_) != 90) GTEST_SKIP() << "no Hopper card here: the kernels were not run";
  }

  Deviation run(const Case& c, const MxDraw& draw, const std::function<void(RefProduct&)>& tamper = {}) {
    return c.wgrad ? run_wgrad(c, draw, tamper) : run_rows(c, draw, tamper);
  }

  Deviation run_rows(const Case& c, const MxDraw& draw, const std::function<void(RefProduct&)>& tamper) {
    const TestGroups g(c.counts, 128);
    const RandomMxOperand x = random_activation(g.rows(), c.k, c.group, draw);
    const RandomMxOperand w = random_weight(static_cast<int64_t>(c.counts.size()), c.n, c.k, c.group, c.sections, other(draw));
    set_pad(x.operand, g, false, tamper ? 0 : 0xff);  // a spoilt reference reads pad rows
    if (zero_in_a_) zero(*zero_in_a_ ? x.scales : w.scales);
    const DeviceTensor out({g.rows(), c.n}, c.out);
    poison(out);
    cuda::sm90::mxfp8_grouped_gemm(ctx_, {x.operand, w.operand, g.groups, out});
    last_ = bytes_of(out);
    const auto spare = last_.end() - 128 * c.n * size_of(c.out);
    EXPECT_TRUE(std::all_of(spare, last_.end(), [](uint8_t b) { return b == 0xff; }))
        << "rows past starts[E] were written: " << c;
    RefProduct p = ref_product(ref_operand(x.operand), ref_operand(w.operand), out, g);
    p.k = c.k;
    if (tamper) tamper(p);
    return deviation(p);
  }

  Deviation run_wgrad(const Case& c, const MxDraw& draw, const std::function<void(RefProduct&)>& tamper) {
    const TestGroups g(c.counts, 128);
    const RandomMxOperand dy = random_activation(c.k, g.rows(), c.group, draw);
    const RandomMxOperand x = random_activation(c.n, g.rows(), c.group, other(draw));
    for (const auto& operand : {dy.operand, x.operand}) set_pad(operand, g, true, 0);
    if (zero_in_a_) zero(*zero_in_a_ ? dy.scales : x.scales);
    const Shape shape{static_cast<int64_t>(c.counts.size()), c.k, c.n};
    const DeviceTensor out(shape, DType::kF32);
    const DeviceTensor before = random_device_tensor(shape, DType::kF32, {.seed = 77, .integers = 9});
    poison(out);
    if (c.accumulate)
      CISTRON_CUDA_CHECK(cudaMemcpy(out.get().raw(), before.get().raw(), out.get().bytes(), cudaMemcpyDeviceToDevice));
    cuda::sm90::mxfp8_grouped_wgrad(ctx_, {dy.operand, x.operand, g.groups, out, c.accumulate});
    last_ = bytes_of(out);
    RefProduct p = ref_product(ref_operand(dy.operand), ref_operand(x.operand), out, g);
    if (c.accumulate) p.before = before.get().data<float>();
    if (tamper) tamper(p);
    return deviation(p);
  }

  static std::vector<Case> cases(int64_t n, int64_t k) {
    std::vector<Case> all;
    for (const auto& counts : std::vector<std::vector<int32_t>>{
             {0, 1, 127, 128, 129}, {300, 0, 0, 513, 256}, {0, 0, 700, 0}, {640}, {64, 64, 64, 64, 64, 64, 64, 64}, {0, 0}}) {
      for (const bool accumulate : {false, true}) all.push_back({true, accumulate, 128, 1, counts, n, k});
      for (const int64_t sections : {1, 2}) all.push_back({false, false, 32, sections, counts, n, k});
      all.push_back({false, false, 128, 1, counts, n, k});
    }
    return all;
  }

  /// Relative error with f32 output that the recipe allows: what the tensor core truncates within a group.
  static double tolerance(int64_t group) { return group == 32 ? 4e-4 : 6e-4; }

  Context ctx_ = cuda_context();
  std::vector<uint8_t> last_;
  std::optional<bool> zero_in_a_;  // scales all 0x00 in A, or in B
};

TEST_F(Sm90Mxfp8GroupedGemm, AgreesWithFloat64) {
  for (const auto& [n, k] : {std::pair{256, 128}, {384, 640}, {640, 384}, {1280, 1152}})
    for (const Case& c : cases(n, k)) {
      const Deviation d = run(c, {.elements = {.seed = 31, .scale = 60}});
      EXPECT_TRUE(d.reference2 == 0 ? d.different == 0 : d.relative() <= tolerance(c.group))
          << c << ": error " << d.relative() << ", not finite " << d.not_finite;
    }
}

TEST_F(Sm90Mxfp8GroupedGemm, RandomShapes) {
  std::mt19937 generator(2026);
  const auto up_to = [&](uint32_t bound) { return static_cast<int32_t>(generator() % bound); };
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<int32_t> counts(1 + up_to(12));
    for (int32_t& count : counts) count = up_to(3) == 0 ? up_to(4) : up_to(500);
    Case c{.wgrad = draw % 4 >= 2, .accumulate = draw % 4 == 3, .group = draw % 4 == 0 ? 32 : 128, .counts = counts};
    c.sections = draw % 8 == 0 ? 2 : 1;
    c.n = (c.group == 32 ? 32 : 128) * c.sections * (1 + up_to(7));
    c.k = 128 * (1 + up_to(7));
    const Deviation d = run(c, {.elements = {.seed = 1000 + static_cast<uint64_t>(draw), .scale = 60}});
    EXPECT_TRUE(d.reference2 == 0 ? d.different == 0 : d.relative() <= tolerance(c.group))
        << "draw " << draw << ": " << c << ": error " << d.relative();
  }
}

TEST_F(Sm90Mxfp8GroupedGemm, RoundsToBf16) {
  for (const int64_t group : {32, 128}) {
    const Deviation d = run({.group = group, .counts = {100, 300}, .n = 384, .k = 512, .out = DType::kBF16}, {});
    EXPECT_LE(d.relative(), tolerance(group) + 1.7e-3) << "group " << group;
  }
}

TEST_F(Sm90Mxfp8GroupedGemm, SmallIntegersAreExact) {
  for (const Case& c : cases(640, 256)) {
    const Deviation d = run(c, {.elements = {.seed = 5, .integers = 3}, .smallest_exponent = 125, .exponents = 4});
    EXPECT_EQ(d.different, 0U) << c;
  }
}

/// Tiles are counted for 32 experts at a time: the carry from one 32 to the next.
TEST_F(Sm90Mxfp8GroupedGemm, MoreExpertsThanLanes) {
  for (const int experts : {33, 70})
    for (const Case& c : {Case{.counts = mixed_counts(experts), .n = 256, .k = 256},
                          Case{.group = 32, .counts = mixed_counts(experts), .n = 192, .k = 256},
                          Case{.wgrad = true, .counts = mixed_counts(experts), .n = 256, .k = 256},
                          Case{.wgrad = true, .accumulate = true, .counts = mixed_counts(experts), .n = 256, .k = 256}}) {
      const Deviation d = run(c, {.elements = {.seed = 6, .integers = 3}, .smallest_exponent = 125, .exponents = 4});
      EXPECT_GT(d.reference2, 0) << c;
      EXPECT_EQ(d.different, 0U) << c;
    }
}

TEST_F(Sm90Mxfp8GroupedGemm, ScaleByteZeroIsNotZero) {
  // 2^-127 on one operand; on the other 2^100, so that the result is an ordinary number.
  for (const Case& c : {Case{.counts = {200}, .n = 256, .k = 256}, Case{.group = 32, .counts = {200}, .n = 192, .k = 256},
                        Case{.wgrad = true, .counts = {200}, .n = 256, .k = 256}}) {
    for (const bool zero_in_a : {true, false}) {
      zero_in_a_ = zero_in_a;
      const Deviation d = run(c, {.elements = {.seed = 5, .integers = 3}, .smallest_exponent = 227, .exponents = 1});
      EXPECT_GT(d.reference2, 0) << c;
      EXPECT_EQ(d.different, 0U) << c << " zero in A " << zero_in_a;
    }
  }
}

TEST_F(Sm90Mxfp8GroupedGemm, RepeatsBitForBit) {
  for (const Case& c : cases(640, 512)) {
    run(c, {.elements = {.seed = 9, .scale = 60}});
    const std::vector<uint8_t> first = last_;
    run(c, {.elements = {.seed = 9, .scale = 60}});
    EXPECT_TRUE(first == last_) << c;
  }
}

/// Exchanges the scales of A's rows 0 and 1 in every group: in one alone the numbers may happen to be too small to matter.
void swap_scales(RefProduct& p) {
  auto* scales = const_cast<uint8_t*>(p.a.scales);
  const int64_t groups = (p.ragged ? p.rows : p.k) / p.a.k_block;
  for (int64_t group = 0; group < groups; ++group) {
    uint8_t pair[2];
    uint8_t* first = scales + group * p.a.k_scale;
    CISTRON_CUDA_CHECK(cudaMemcpy(pair, first, 2, cudaMemcpyDeviceToHost));
    std::swap(pair[0], pair[1]);
    CISTRON_CUDA_CHECK(cudaMemcpy(first, pair, 2, cudaMemcpyHostToDevice));
  }
}

/// Exchanges the scales of B's first two row blocks in every group of one expert: of a weight.
void swap_weight_scales(RefProduct& p) {
  auto* scales = const_cast<uint8_t*>(p.b.scales) + p.b.e_scale;
  const auto bytes = static_cast<size_t>(p.b.mn_scale);
  std::vector<uint8_t> pair(2 * bytes);
  CISTRON_CUDA_CHECK(cudaMemcpy(pair.data(), scales, 2 * bytes, cudaMemcpyDeviceToHost));
  std::rotate(pair.begin(), pair.begin() + static_cast<int64_t>(bytes), pair.end());
  CISTRON_CUDA_CHECK(cudaMemcpy(scales, pair.data(), 2 * bytes, cudaMemcpyHostToDevice));
}

TEST_F(Sm90Mxfp8GroupedGemm, SwappedWeightScalesAreRejected) {
  for (const int64_t group : {32, 128}) {
    const Case c{.group = group, .counts = {200, 128, 300}, .n = 384, .k = 512};
    const double error = run(c, {.elements = {.seed = 3, .scale = 60}}, swap_weight_scales).relative();
    EXPECT_TRUE(std::isfinite(error)) << c;
    EXPECT_GT(error, 10 * tolerance(group)) << c;
  }
}

/// Weight gradients whose sides are no multiples of a tile or of a scale group, over rows that are none either.
TEST_F(Sm90Mxfp8GroupedGemm, WgradOfAnySides) {
  for (const auto& [n, k] : {std::pair{16, 16}, {144, 80}, {272, 400}, {1040, 208}})
    for (const bool accumulate : {false, true}) {
      const Case c{.wgrad = true, .accumulate = accumulate, .counts = {1, 100, 0, 257, 130}, .n = n, .k = k};
      const Deviation d = run(c, {.elements = {.seed = 12, .scale = 60}});
      EXPECT_LE(d.relative(), tolerance(128)) << c << ", not finite " << d.not_finite;
      const Deviation exact = run(c, {.elements = {.seed = 5, .integers = 3}, .smallest_exponent = 125, .exponents = 4});
      EXPECT_EQ(exact.different, 0U) << c;
    }
}

TEST_F(Sm90Mxfp8GroupedGemm, WrongReferencesAreRejected) {
  const auto next_row = [](RefProduct& p) { p.late = 0; };
  const auto block_omitted = [](RefProduct& p) { p.omit = 32; };
  const std::vector<std::function<void(RefProduct&)>> wrong = {next_row, block_omitted, swap_scales};
  for (const Case& c :
       {Case{.counts = {200, 128, 300}, .n = 384, .k = 512}, Case{.group = 32, .counts = {200, 128, 300}, .n = 384, .k = 512},
        Case{.wgrad = true, .counts = {200, 128, 300}, .n = 384, .k = 512}})
    for (size_t i = 0; i < wrong.size(); ++i) {
      const double error = run(c, {.elements = {.seed = 3, .scale = 60}}, wrong[i]).relative();
      EXPECT_TRUE(std::isfinite(error)) << c << ": control " << i;
      EXPECT_GT(error, 2 * tolerance(c.group)) << c << ": control " << i;
    }
}

}  // namespace
}  // namespace cistron::test
