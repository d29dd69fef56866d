// On the card the same bits as on the CPU: one rounding an element leaves no choice.
#include "cistron/ops/elementwise.h"

#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
constexpr int64_t kSizes[] = {0, 1, 8, 17, 4096, 70001};

class CudaElementwise : public OnCard {
 protected:
  /// A tensor that begins `offset` elements into its memory, so that 16 bytes at a time can't be taken.
  Tensor shifted(const Tensor& host, int64_t offset) {
    const Tensor whole = cuda_.empty({host.numel() + offset}, host.dtype());
    const Tensor part = whole.rows(offset, host.numel());
    copy_to_device(part, host);
    return part;
  }
};

TEST_F(CudaElementwise, Cast) {
  for (DType from : kFloats)
    for (DType to : kFloats)
      for (int64_t n : kSizes)
        for (int64_t offset : {0, 1}) {
          const Tensor x = random_tensor(cpu_, {n}, from, 1);
          const Tensor want = poisoned(cpu_, {n}, to), got = poisoned_there({n + 1}, to);
          ops::cast(cpu_, {x, want});
          ops::cast(cuda_, {shifted(x, offset), got.rows(0, n)});
          EXPECT_TRUE(same_bits(host(got.rows(0, n)), want)) << n;
          EXPECT_TRUE(std::isnan(to_double(host(got)).back()));
        }
}

TEST_F(CudaElementwise, Add) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64})
    for (int64_t n : kSizes)
      for (int64_t offset : {0, 1}) {
        const Tensor a = random_tensor(cpu_, {n}, dtype, 2), b = random_tensor(cpu_, {n}, dtype, 3);
        const Tensor want = poisoned(cpu_, {n}, dtype), got = shifted(want, offset);
        ops::add(cpu_, {a, b, want});
        ops::add(cuda_, {device(a), device(b), got});
        EXPECT_TRUE(same_bits(host(got), want)) << n;
        const Tensor alias = device(a);
        ops::add(cuda_, {alias, device(b), alias});
        EXPECT_TRUE(same_bits(host(alias), want)) << n;
        EXPECT_FALSE(n > 0 && same_bits(host(alias), a));  // control
      }
}

TEST_F(CudaElementwise, Zero) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8})
    for (int64_t n : kSizes) {
      const Tensor x = poisoned_there({n}, dtype);
      ops::zero(cuda_, {x});
      EXPECT_TRUE(within(host(x), std::vector<double>(static_cast<size_t>(n), 0.0), 0.0));
    }
}

TEST_F(CudaElementwise, ClampAndItsBackward) {
  for (DType dtype : kFloats)
    for (DType of_dx : kFloats)
      for (int64_t n : kSizes)
        for (float limit : {0.75F, 0.3F}) {
          const Tensor x = random_tensor(cpu_, {n}, dtype, 4), dx = random_tensor(cpu_, {n}, of_dx, 5);
          const Tensor got = device(x), got_dx = device(dx), before = copy_of(cpu_, dx);
          ops::clamp(cpu_, {x, limit});
          ops::clamp_backward(cpu_, {x, limit, dx});
          ops::clamp(cuda_, {got, limit});
          ops::clamp_backward(cuda_, {got, limit, got_dx});
          EXPECT_TRUE(same_bits(host(got), x));
          EXPECT_TRUE(same_bits(host(got_dx), dx));
          EXPECT_FALSE(n > 1000 && same_bits(host(got_dx), before));  // control: some were held back
        }
}

TEST_F(CudaElementwise, ClampKeepsNaN) {
  const Tensor x = poisoned_there({20}, DType::kF32);
  ops::clamp(cuda_, {x, 1.0F});
  for (double v : to_double(host(x))) EXPECT_TRUE(std::isnan(v));
}

}  // namespace
}  // namespace cistron::test
