// Contexts name their card; the current one stays as it was.
#include "cistron/cuda/runtime/runtime.h"

#include <gtest/gtest.h>

#include "cistron/ops/grouped_gemm.h"
#include "tests/cuda/support.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron::test {
namespace {

int current_card() {
  int index = -1;
  CISTRON_CUDA_CHECK(cudaGetDevice(&index));
  return index;
}

class CudaRuntime : public testing::Test {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
};

TEST_F(CudaRuntime, ACardThatIsNotThereIsAnErrorThatLeavesNoTrace) {
  EXPECT_THROW(cuda::DeviceGuard(cuda::device_count()), cuda::CudaError);
  EXPECT_EQ(current_card(), 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaRuntime, GuardsNestAndGiveBack) {
  const int last = cuda::device_count() - 1;
  {
    const cuda::DeviceGuard outer(last);
    EXPECT_EQ(current_card(), last);
    const cuda::DeviceGuard inner(0);
    EXPECT_EQ(current_card(), 0);
  }
  EXPECT_EQ(current_card(), 0);
}

/// The product runs on the context's card though another is the current one.
TEST_F(CudaRuntime, ProductsRunOnTheContextsCard) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one card here: nothing ran on a second one";
  CpuContext cpu;
  CudaContext cuda;
  const auto routed = mxfp8_groups(cpu, {128});
  const Tensor x = random_tensor(cpu, {256, 64}, DType::kBF16, 1);
  const Tensor w = random_tensor(cpu, {1, 64, 64}, DType::kBF16, 2);
  const auto run = [&](int card) {
    cuda.device.index = card;
    std::vector<void*> memory;
    const auto on_card = [&](const Tensor& host) {
      const cuda::DeviceGuard guard(card);
      CISTRON_CUDA_CHECK(cudaMalloc(&memory.emplace_back(), static_cast<size_t>(host.bytes())));
      CISTRON_CUDA_CHECK(cudaMemcpy(memory.back(), host.raw(), static_cast<size_t>(host.bytes()), cudaMemcpyDefault));
      return Tensor::view(memory.back(), host.shape(), host.dtype(), cuda.device);
    };
    ops::Groups groups = routed.groups;
    groups.starts = on_card(groups.starts);
    groups.counts = on_card(groups.counts);
    const Tensor out = on_card(tensor_of(cpu, {256, 64}, DType::kF32, std::vector<double>(256 * 64)));
    ops::grouped_gemm_forward(cuda, {.x = on_card(x), .w = on_card(w), .groups = groups, .out = out});
    EXPECT_EQ(current_card(), 0);
    const cuda::DeviceGuard guard(card);
    Tensor got = to_host(cpu, out);
    for (void* block : memory) cudaFree(block);
    return got;
  };
  EXPECT_TRUE(same_bits(run(1).rows(0, 128), run(0).rows(0, 128)));
}

}  // namespace
}  // namespace cistron::test
