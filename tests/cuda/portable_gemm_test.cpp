// The portable grouped products on the card against float64, with the group sizes and poisons that catch wrong offsets.
#include "cistron/cuda/gemm/portable.h"
#include "tests/cuda/support.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron::test {
namespace {

using cpu::ref::Matrix;

struct Param {
  std::vector<int64_t> counts;
  int64_t n, k;
  DType in, out;
};

double tolerance(DType out) { return out == DType::kBF16 ? 1.7e-3 + 1e-5 : 1e-5; }

class CudaPortable : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    CISTRON_NEEDS_CARD();
    routed_ = mxfp8_groups(cpu_, p_.counts);
    groups_ = routed_.groups;
    groups_.starts = to_device(cuda_, groups_.starts);
    groups_.counts = to_device(cuda_, groups_.counts);
    x_ = rows(p_.k, 1);
    dy_ = rows(p_.n, 2);
    w_ = random_tensor(cpu_, {experts(), p_.n, p_.k}, p_.in, 3, 0.1);
  }
  [[nodiscard]] int64_t experts() const { return static_cast<int64_t>(p_.counts.size()); }
  /// NaN in pad rows: they must not matter.
  Tensor rows(int64_t width, uint64_t seed) {
    Tensor x = poisoned(cpu_, {routed_.groups.max_rows(), width}, p_.in);
    const Tensor values = random_tensor(cpu_, x.shape(), p_.in, seed);
    cpu::ref::for_rows(routed_.segments, [&](int64_t, int64_t r) {
      std::memcpy(x.rows(r, 1).raw(), values.rows(r, 1).raw(), static_cast<size_t>(width * size_of(p_.in)));
    });
    return x;
  }
  double rows_error(const Tensor& got, const Matrix<double>& want) {
    return relative_error(rows_in_use(got, routed_.segments), rows_in_use(want, routed_.segments));
  }
  Tensor forward() {
    Tensor out = poisoned_on_device(cuda_, {x_.dim(0), p_.n}, p_.out);
    cuda::portable::grouped_gemm_forward(cuda_,
                                         {.x = to_device(cuda_, x_), .w = to_device(cuda_, w_), .groups = groups_, .out = out});
    return to_host(cpu_, out);
  }
  Tensor dgrad() {
    Tensor out = poisoned_on_device(cuda_, {x_.dim(0), p_.k}, p_.out);
    cuda::portable::grouped_gemm_dgrad(cuda_,
                                       {.dy = to_device(cuda_, dy_), .w = to_device(cuda_, w_), .groups = groups_, .out = out});
    return to_host(cpu_, out);
  }
  /// Written once, then `times` - 1 times added to.
  Tensor wgrad(int times) {
    Tensor out = poisoned_on_device(cuda_, {experts(), p_.n, p_.k}, DType::kF32);
    for (int i = 0; i < times; ++i)
      cuda::portable::grouped_gemm_wgrad(
          cuda_, {.dy = to_device(cuda_, dy_), .x = to_device(cuda_, x_), .groups = groups_, .out = out, .accumulate = i > 0});
    return to_host(cpu_, out);
  }
  [[nodiscard]] Matrix<double> forward_of(const Tensor& x) const {
    return cpu::ref::grouped_gemm_forward(to_matrix(x), to_matrix(w_), p_.n, routed_.segments);
  }
  [[nodiscard]] Matrix<double> dgrad_of(const Tensor& dy) const {
    return cpu::ref::grouped_gemm_dgrad(to_matrix(dy), to_matrix(w_), routed_.segments);
  }
  [[nodiscard]] std::vector<double> wgrad_of(const Tensor& dy, double times) const {
    auto want = cpu::ref::grouped_gemm_wgrad(to_matrix(dy), to_matrix(x_), routed_.segments).data;
    for (double& value : want) value *= times;
    return want;
  }

  /// Rows as the busiest expert reads them from an offset off by one; zeros after its last row.
  Tensor one_row_late(const Tensor& rows) {
    const Tensor late = copy_of(cpu_, rows);
    const auto e = static_cast<size_t>(routed_.busiest());
    const int64_t count = routed_.segments.counts[e];
    const auto bytes = static_cast<size_t>(rows.dim(1) * size_of(p_.in));
    auto* first = static_cast<char*>(late.rows(routed_.segments.starts[e], 1).raw());
    const size_t kept = static_cast<size_t>(count - 1) * bytes;
    std::memmove(first, first + bytes, kept);
    std::memset(first + kept, 0, bytes);
    return late;
  }
  static void rejected(double error, DType out) {
    EXPECT_TRUE(std::isfinite(error));
    EXPECT_GT(error, 10 * tolerance(out));
  }

  Param p_ = GetParam();
  CpuContext cpu_{2};
  CudaContext cuda_;
  Mxfp8Groups routed_;
  ops::Groups groups_;
  Tensor x_, dy_, w_;
};

TEST_P(CudaPortable, Forward) {
  const Tensor out = forward();
  EXPECT_LE(rows_error(out, forward_of(x_)), tolerance(p_.out));
  EXPECT_TRUE(same_bits(forward(), out));
  if (routed_.total() > 1) rejected(rows_error(out, forward_of(one_row_late(x_))), p_.out);
}

TEST_P(CudaPortable, Dgrad) {
  const Tensor out = dgrad();
  EXPECT_LE(rows_error(out, dgrad_of(dy_)), tolerance(p_.out));
  EXPECT_TRUE(same_bits(dgrad(), out));
  if (routed_.total() > 1) rejected(rows_error(out, dgrad_of(one_row_late(dy_))), p_.out);
}

TEST_P(CudaPortable, Wgrad) {
  for (const int times : {1, 2}) {
    const Tensor out = wgrad(times);
    EXPECT_LE(relative_error(to_double(out), wgrad_of(dy_, times)), 1e-5);
    EXPECT_TRUE(same_bits(wgrad(times), out));
    if (routed_.total() > 1) rejected(relative_error(to_double(out), wgrad_of(one_row_late(dy_), times)), DType::kF32);
  }
}

// Small integers have exact sums in any order: what a tolerance would hide shows.
TEST_P(CudaPortable, IntegersAreExact) {
  for (const Tensor& tensor : {x_, dy_, w_}) {
    const Tensor ints = random_ints(cpu_, tensor.shape(), 7, 5);
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const auto value = static_cast<float>(ints.data<int32_t>()[i] - 2);
      p_.in == DType::kF32 ? void(tensor.data<float>()[i] = value) : void(tensor.data<bf16>()[i] = bf16(value));
    }
  }
  EXPECT_EQ(relative_error(to_double(wgrad(2)), wgrad_of(dy_, 2)), 0.0);
  if (p_.out == DType::kBF16) return;
  EXPECT_EQ(rows_error(forward(), forward_of(x_)), 0.0);
  EXPECT_EQ(rows_error(dgrad(), dgrad_of(dy_)), 0.0);
}

std::vector<Param> params() {
  std::vector<Param> all;
  const std::vector<std::vector<int64_t>> counts = {{0, 1, 127, 128, 129}, {0, 300, 0}, {5}, {0, 0}};
  for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}})
    for (const auto& c : counts) all.push_back({c, 272, 144, in, out});
  all.push_back({{200, 70}, 48, 520, DType::kBF16, DType::kF32});
  all.push_back({{2500}, 528, 80, DType::kBF16, DType::kF32});  // two bands of tiles
  std::vector<int64_t> many;
  for (int64_t e = 0; e < 70; ++e) many.push_back(e % 5 == 0 ? 0 : e * 53 % 140);
  for (const DType in : {DType::kF32, DType::kBF16}) all.push_back({many, 80, 144, in, DType::kF32});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Groups, CudaPortable, testing::ValuesIn(params()));

class CudaPortableMxfp8 : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  ops::MxDecoded decoded(const ops::MxOperand& a, const ops::MxOperand& b) {
    return {.a = cuda_.empty(a.elements.shape(), DType::kBF16), .b = cuda_.empty(b.elements.shape(), DType::kBF16), .sum = {}};
  }
  CpuContext cpu_{2};
  CudaContext cuda_;
};

TEST_P(CudaPortableMxfp8, AllThreeProducts) {
  const auto routed = mxfp8_groups(cpu_, {0, 1, 127, 128, 129, 300});
  const int64_t n = 256;
  const int64_t k = 384;
  ops::Groups groups = routed.groups;
  groups.starts = to_device(cuda_, groups.starts);
  groups.counts = to_device(cuda_, groups.counts);
  const auto x = mxfp8_routed(cpu_, routed, k, GetParam(), 1);
  const auto dy = mxfp8_routed(cpu_, routed, n, GetParam(), 2);
  const Tensor w = random_tensor(cpu_, {6, n, k}, DType::kBF16, 3, 0.1);
  const auto wq = ops::mxfp8_empty_weights(cpu_, w.shape(), GetParam(), 2);
  ops::mxfp8_quantize_weights(cpu_, {.w = w, .out = wq});
  const auto check_rows = [&](const ops::MxOperand& a, const ops::MxOperand& b) {
    const Tensor out = poisoned_on_device(cuda_, {a.rows(), b.rows()}, DType::kF32);
    const ops::MxOperand x_card = to_device(cuda_, a), w_card = to_device(cuda_, b);
    const ops::MxDecoded scratch = decoded(x_card, w_card);
    cuda::portable::mxfp8_grouped_gemm(cuda_, {.x = x_card, .w = w_card, .groups = groups, .out = out, .decoded = scratch});
    const auto want =
        cpu::ref::grouped_gemm_forward(cpu::ref::mxfp8_decode(a), cpu::ref::mxfp8_decode(b), b.rows(), routed.segments);
    EXPECT_LE(relative_error(rows_in_use(to_host(cpu_, out), routed.segments), rows_in_use(want, routed.segments)), 1e-5);
  };
  check_rows(x.rows, wq.rows);
  check_rows(dy.rows, wq.columns);
  const Tensor out = poisoned_on_device(cuda_, {6, n, k}, DType::kF32);
  const ops::MxOperand dy_card = to_device(cuda_, dy.columns), x_card = to_device(cuda_, x.columns);
  const ops::MxDecoded scratch = decoded(dy_card, x_card);
  cuda::portable::mxfp8_grouped_wgrad(cuda_, {.dy = dy_card, .x = x_card, .groups = groups, .out = out, .decoded = scratch});
  const auto want = cpu::ref::grouped_gemm_wgrad(transposed(cpu::ref::mxfp8_decode(dy.columns)),
                                                 transposed(cpu::ref::mxfp8_decode(x.columns)), routed.segments);
  EXPECT_LE(relative_error(to_double(to_host(cpu_, out)), want.data), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(ScaleGroups, CudaPortableMxfp8, testing::Values(128, 32));

}  // namespace
}  // namespace cistron::test
