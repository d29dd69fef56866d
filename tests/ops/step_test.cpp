// What stands around a step's operations: copies, results without waiting, the guard, the timer. On the CPU; tests/cuda has the
// card's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/publish.h"
#include "cistron/ops/step_guard.h"
#include "cistron/ops/timer.h"

namespace cistron::ops {
namespace {

Context on_cpu() { return {.arena = Arena::growing("test", Device{}, host_memory())}; }

TEST(Copy, CopiesAndRefusesOtherShapes) {
  Context ctx = on_cpu();
  std::vector<float> from(37), to(37, -1.0F), shorter(36);
  std::iota(from.begin(), from.end(), 0.5F);
  copy(ctx, {.x = Tensor::view(std::span(from)), .out = Tensor::view(std::span(to))});
  EXPECT_EQ(from, to);
  EXPECT_THROW(copy(ctx, {.x = Tensor::view(std::span(from)), .out = Tensor::view(std::span(shorter))}), Error);
}

TEST(Copy, PiecesOfAHostTensorAreTheTensor) {
  Context ctx = on_cpu();
  std::vector<float> values(1000);
  const Tensor tensor = Tensor::view(std::span(values));
  write_pieces(ctx, tensor, [](int64_t begin, std::span<std::byte> piece) {
    auto* at = reinterpret_cast<float*>(piece.data());
    for (size_t i = 0; i < piece.size() / sizeof(float); ++i) at[i] = static_cast<float>(begin / 4) + static_cast<float>(i);
  });
  EXPECT_EQ(values[999], 999.0F);
  size_t seen = 0;
  read_pieces(ctx, tensor, [&](std::span<const std::byte> piece) {
    EXPECT_EQ(piece.data(), static_cast<const std::byte*>(tensor.raw()) + seen) << "the CPU needs no copy";
    seen += piece.size();
  });
  EXPECT_EQ(seen, values.size() * sizeof(float));
}

TEST(Publish, SlotsTakeTurnsAndAreKnownByTheirNumber) {
  Context ctx = on_cpu();
  std::vector<double> sums{1, 2, 3};
  std::vector<uint8_t> bytes{9, 8, 7, 6, 5};  // not a multiple of 8: the next part is
  const std::array parts{Tensor::view(std::span(bytes)), Tensor::view(std::span(sums))};
  ASSERT_EQ(published_bytes(parts), 8 + 24 + 8);
  std::vector<uint8_t> memory(2 * 40);
  const Tensor out = Tensor::view(std::span(memory)).reshape({2, 40});
  for (int64_t number = 6; number <= 7; ++number) {
    sums[0] = static_cast<double>(number);
    publish(ctx, {.parts = parts, .number = &number, .out = out});
  }
  for (int64_t number = 6; number <= 7; ++number) {
    const auto slot = await_published(nullptr, out, number);
    double first = 0.0;
    std::memcpy(&first, slot.data() + 8, sizeof first);
    EXPECT_EQ(first, static_cast<double>(number));
    EXPECT_EQ(slot[4], std::byte{5});
  }
  EXPECT_THROW(await_published(nullptr, out, 8), Error) << "nobody wrote it";
}

TEST(StepGuard, NothingIsUpdatedAfterANumberThatIsNotFinite) {
  Context ctx = on_cpu();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  StepState state;
  const auto guard = [&](double loss, int32_t finite) {
    state.finite = finite;  // as ops::grad_norm leaves it
    step_guard(ctx, {.loss = Tensor::view(std::span<double>(&loss, 1)), .state = &state});
    return state.finite != 0;
  };
  EXPECT_TRUE(guard(1.0, 1));
  EXPECT_FALSE(guard(kNan, 1));
  EXPECT_FALSE(guard(1.0, 1)) << "a healthy step after a broken one";
  state.halted = 0;  // the host has looked
  EXPECT_TRUE(guard(1.0, 1));
  EXPECT_FALSE(guard(1.0, 0)) << "the gradients were not finite";
  EXPECT_FALSE(guard(1.0, 1));
}

TEST(Timer, IsToldOfEachOperationAndItsCost) {
  Context ctx = on_cpu();
  std::vector<float> a(64, 1.0F), b(64, 2.0F), c(64);
  const Tensor ta = Tensor::view(std::span(a)), tb = Tensor::view(std::span(b)), tc = Tensor::view(std::span(c));
  const auto timer = make_timer(ctx);
  add(ctx, {.a = ta, .b = tb, .out = tc});  // nobody listens yet
  timer->start(0);
  ctx.timer = timer.get();
  add(ctx, {.a = ta, .b = tb, .out = tc});
  cast(ctx, {.x = ta, .out = tc});
  ctx.timer = nullptr;
  const auto operations = timer->finish();
  ASSERT_EQ(operations.size(), 2U);
  EXPECT_EQ(operations[0].op, "add");
  EXPECT_EQ(operations[0].cost.bytes, 3 * 64 * 4);
  EXPECT_EQ(operations[1].cost.bytes, 2 * 64 * 4);
  EXPECT_GE(operations[0].milliseconds, 0.0);
}

}  // namespace
}  // namespace cistron::ops
