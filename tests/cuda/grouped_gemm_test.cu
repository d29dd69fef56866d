// The bf16 grouped products on Hopper against float64 on the card.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "tests/cuda/reference.cuh"

namespace cistron::test {
namespace {

enum class Product { kForward, kDgrad, kWgrad, kWgradAccumulate };

struct Case {
  Product product;
  std::vector<int32_t> counts;
  int64_t n, k;  // of the weight [E, N, K]
  DType out = DType::kBF16;
};

class Sm90GroupedGemm : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA card here: the kernels were not run";
    if (cuda::compute_capability(ctx_) != 90) GTEST_SKIP() << "no Hopper card here: the kernels were not run";
  }

  /// Runs a product on fresh inputs, poisoned outputs and pad rows; `tamper` may spoil the reference before it is compared, which
  /// then reads pad rows: zeros.
  Deviation run(const Case& c, const Draw& draw, const std::function<void(RefProduct&)>& tamper = {}) {
    const TestGroups g(c.counts, 128);
    const auto experts = static_cast<int64_t>(c.counts.size());
    const bool wgrad = c.product == Product::kWgrad || c.product == Product::kWgradAccumulate;
    const DeviceTensor w = random_device_tensor({experts, c.n, c.k}, DType::kBF16, {draw.seed + 1, draw.scale, draw.integers});
    const DeviceTensor x = random_device_tensor({g.rows(), c.k}, DType::kBF16, {draw.seed + 2, draw.scale, draw.integers});
    const DeviceTensor dy = random_device_tensor({g.rows(), c.n}, DType::kBF16, {draw.seed + 3, draw.scale, draw.integers});
    for (const Tensor& t : {x.get(), dy.get()}) set_pad_rows(t, g, wgrad || tamper ? 0 : 0xff);
    const Shape shape = wgrad ? Shape{experts, c.n, c.k} : Shape{g.rows(), c.product == Product::kForward ? c.n : c.k};
    const DeviceTensor out(shape, c.out);
    const DeviceTensor before = random_device_tensor(shape, DType::kF32, {draw.seed + 4, draw.scale, draw.integers});
    poison(out);
    RefProduct p;
    if (c.product == Product::kForward) {
      cuda::sm90::grouped_gemm_forward(ctx_, {x, w, g.groups, out});
      p = ref_product(ref_operand(x), ref_operand(w), out, g);
      p.k = c.k;
    } else if (c.product == Product::kDgrad) {
      cuda::sm90::grouped_gemm_dgrad(ctx_, {dy, w, g.groups, out});
      p = ref_product(ref_operand(dy), ref_operand(w, true), out, g);
      p.k = c.n;
    } else {
      const bool accumulate = c.product == Product::kWgradAccumulate;
      if (accumulate)
        CISTRON_CUDA_CHECK(cudaMemcpy(out.get().raw(), before.get().raw(), out.get().bytes(), cudaMemcpyDeviceToDevice));
      cuda::sm90::grouped_gemm_wgrad(ctx_, {dy, x, g.groups, out, accumulate});
      p = ref_product(ref_operand(dy, true), ref_operand(x, true), out, g);
      if (accumulate) p.before = before.get().data<float>();
    }
    last_ = bytes_of(out);
    if (!wgrad) spare_untouched(out, g);
    if (tamper) tamper(p);
    return deviation(p);
  }

  /// Nothing past the last segment was written.
  static void spare_untouched(const Tensor& out, const TestGroups& g) {
    const std::vector<uint8_t> bytes = bytes_of(out.rows(g.starts.back(), g.rows() - g.starts.back()));
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0xff; }))
        << "rows past starts[E] were written";
  }

  Context ctx_ = cuda_context();
  std::vector<uint8_t> last_;
};

const std::vector<std::vector<int32_t>> kCounts = {
    {0, 1, 127, 128, 129}, {300, 0, 0, 513, 256}, {0, 0, 700, 0}, {640}, {64, 64, 64, 64, 64, 64, 64, 64}, {0, 0}};
const Product kProducts[] = {Product::kForward, Product::kDgrad, Product::kWgrad, Product::kWgradAccumulate};

/// f32 sums of exact products: 1e-5 (docs of the recipe); one rounding to bf16 has relative error 2^-9 / sqrt(3) to first order.
double tolerance(DType out) { return out == DType::kF32 ? 1e-5 : 1e-5 + 1.7e-3; }

TEST_F(Sm90GroupedGemm, AgreesWithFloat64) {
  for (const Product product : kProducts)
    for (const auto& counts : kCounts)
      for (const DType out : {DType::kF32, DType::kBF16}) {
        if (product == Product::kWgradAccumulate && out == DType::kBF16) continue;
        for (const auto& [n, k] : {std::pair{384, 512}, {256, 64}, {80, 144}, {1040, 264}}) {
          const Case c{product, counts, n, k, out};
          const Deviation d = run(c, {.seed = 11});
          const bool nothing = d.reference2 == 0;
          EXPECT_TRUE(nothing ? d.different == 0 : d.relative() <= tolerance(out))
              << "product " << static_cast<int>(product) << " counts[0] " << counts[0] << " of " << counts.size() << " n " << n
              << " k " << k << " f32 " << (out == DType::kF32) << ": error " << d.relative() << ", not finite " << d.not_finite;
        }
      }
}

TEST_F(Sm90GroupedGemm, SmallIntegersAreExact) {
  for (const Product product : kProducts)
    for (const auto& counts : kCounts) {
      const Deviation d = run({product, counts, 320, 448, DType::kF32}, {.seed = 5, .integers = 3});
      EXPECT_EQ(d.different, 0U) << "product " << static_cast<int>(product) << " counts[0] " << counts[0] << " of "
                                 << counts.size();
    }
}

/// Tiles are counted for 32 experts at a time: the carry from one 32 to the next.
TEST_F(Sm90GroupedGemm, MoreExpertsThanLanes) {
  for (const Product product : kProducts)
    for (const int experts : {33, 70}) {
      const Deviation d = run({product, mixed_counts(experts), 272, 144, DType::kF32}, {.seed = 6, .integers = 3});
      EXPECT_GT(d.reference2, 0);
      EXPECT_EQ(d.different, 0U) << "product " << static_cast<int>(product) << " experts " << experts;
    }
}

TEST_F(Sm90GroupedGemm, RepeatsBitForBit) {
  for (const Product product : kProducts) {
    const Case c{product, {1000, 3, 0, 2000}, 1024, 768, DType::kF32};
    run(c, {.seed = 9});
    const std::vector<uint8_t> first = last_;
    run(c, {.seed = 9});
    // Pad rows may hold anything, but the same inputs make the same bytes there too.
    EXPECT_TRUE(first == last_) << "product " << static_cast<int>(product);
  }
}

TEST_F(Sm90GroupedGemm, WrongReferencesAreRejected) {
  const auto next_row = [](RefProduct& p) { p.late = 0; };
  const auto block_omitted = [](RefProduct& p) { p.omit = 64; };
  const std::vector<std::function<void(RefProduct&)>> wrong = {next_row, block_omitted};
  for (const Product product : kProducts)
    for (const auto& tamper : wrong) {
      const Deviation d = run({product, {200, 128, 300}, 512, 512, DType::kF32}, {.seed = 3}, tamper);
      EXPECT_TRUE(std::isfinite(d.relative())) << "product " << static_cast<int>(product);
      EXPECT_GT(d.relative(), 100 * tolerance(DType::kF32)) << "product " << static_cast<int>(product);
    }
}

TEST_F(Sm90GroupedGemm, RandomShapes) {
  std::mt19937 generator(2026);
  const auto up_to = [&](uint32_t bound) { return static_cast<int32_t>(generator() % bound); };
  for (int draw = 0; draw < 200; ++draw) {
    std::vector<int32_t> counts(1 + up_to(12));
    for (int32_t& count : counts) count = up_to(3) == 0 ? up_to(4) : up_to(500);
    const Case c{kProducts[draw % 4], counts, 16 * (1 + up_to(60)), 16 * (1 + up_to(60)), DType::kF32};
    const Deviation d = run(c, {.seed = 1000 + static_cast<uint64_t>(draw)});
    EXPECT_TRUE(d.reference2 == 0 ? d.different == 0 : d.relative() <= tolerance(DType::kF32))
        << "draw " << draw << " product " << draw % 4 << " experts " << counts.size() << " n " << c.n << " k " << c.k
        << ": error " << d.relative();
  }
}

TEST_F(Sm90GroupedGemm, TakesAnyBudgetOfMultiprocessors) {
  for (const int budget : {2, 3, 100}) {
    ctx_.sm_budget = budget;
    const Deviation d = run({Product::kForward, {1000, 300, 0, 40}, 1024, 256, DType::kF32}, {.seed = 21});
    EXPECT_LE(d.relative(), tolerance(DType::kF32)) << "budget " << budget;
  }
}

}  // namespace
}  // namespace cistron::test
