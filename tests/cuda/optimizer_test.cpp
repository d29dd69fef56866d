#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/cuda/support.h"
#include "tests/ops/mxfp8_adamw_cases.h"

namespace cistron::test {
namespace {

constexpr double kU = 0x1p-24;

std::span<const uint8_t> to_bytes(const Tensor& t) {
  return {static_cast<const uint8_t*>(t.raw()), static_cast<size_t>(t.bytes())};
}

class CudaOptimizer : public OnCard {
 protected:
  Tensor state_there(const StepState& state) {
    const Tensor bytes = cpu_.empty({static_cast<int64_t>(sizeof(StepState))}, DType::kU8);
    std::memset(bytes.raw(), 0, sizeof(state));
    std::memcpy(bytes.raw(), &state, offsetof(StepState, finite) + sizeof(state.finite));  // what pads it may differ
    return device(bytes);
  }
  static StepState* pointer(const Tensor& state) { return static_cast<StepState*>(state.raw()); }
  StepState norm_of(const std::vector<Tensor>& grads, float clip_norm) {
    std::vector<Tensor> there;
    for (const Tensor& grad : grads) there.push_back(device(grad));
    const Tensor result = twice([&] {
                            const Tensor state = state_there(
                                {.step = 7, .clip_norm = clip_norm, .grad_norm = -1.0F, .clip_factor = -1.0F, .finite = -1});
                            ops::grad_norm(cuda_, {there, pointer(state)});
                            return std::vector{state};
                          }).front();
    StepState state;
    std::memcpy(&state, result.raw(), sizeof(state));
    EXPECT_EQ(state.step, 7);
    return state;
  }
  std::vector<Tensor> step(const std::vector<Moments>& all, float decay, const StepState& state, float eps) {
    return twice([&] {
      std::vector<ops::AdamWTensor> tensors;
      std::vector<Tensor> results;
      for (const Moments& t : all) {
        tensors.push_back({device(t.master), device(t.grad), device(t.m), device(t.v), device(t.working), decay});
        for (const Tensor& r : {tensors.back().master, tensors.back().m, tensors.back().v, tensors.back().working})
          results.push_back(r);
      }
      const Tensor there = state_there(state);
      ops::adamw(cuda_, {.tensors = tensors, .beta1 = kBeta1, .beta2 = kBeta2, .eps = eps, .state = pointer(there)});
      return results;
    });
  }
  ops::AdamWTensor there(const ops::AdamWTensor& t) {
    ops::AdamWTensor copy = t;
    for (Tensor* tensor : {&copy.master, &copy.grad, &copy.m, &copy.v, &copy.working, &copy.m_scale, &copy.v_scale})
      if (tensor->defined()) *tensor = device(*tensor);
    return copy;
  }
  /// What is kept after a step of `parts`, which are rows of copies of `whole` on the card.
  using Parts = std::function<std::vector<ops::AdamWTensor>(const ops::AdamWTensor& there)>;
  std::vector<Tensor> kept_after(const ops::AdamWTensor& whole, const StepState& state, const Parts& parts) {
    return twice([&] {
      const ops::AdamWTensor on_card = there(whole);
      const Tensor state_bytes = state_there(state);
      ops::adamw(cuda_, {.tensors = parts(on_card), .beta1 = kBeta1, .beta2 = kBeta2, .state = pointer(state_bytes)});
      return kept_tensors(on_card);
    });
  }
  std::vector<Tensor> kept_after(const ops::AdamWTensor& whole, const StepState& state) {
    return kept_after(whole, state, [](const ops::AdamWTensor& t) { return std::vector{t}; });
  }
};

/// `t` with other numbers, in the order of kept_tensors.
ops::AdamWTensor with_kept(ops::AdamWTensor t, const std::vector<Tensor>& kept) {
  size_t i = 0;
  for (Tensor* tensor : {&t.master, &t.m, &t.v, &t.working, &t.m_scale, &t.v_scale})
    if (tensor->defined()) *tensor = kept[i++];
  return t;
}

TEST_F(CudaOptimizer, StatesAndWeightsInLessAreWithinAStepOfTheReference) {
  for (const Kept kept : kKept)
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{2, 5, 130}, Shape{40, 512}, Shape{9, 1004}, Shape{0, 8}}) {
      const auto before = random_kept(cpu_, shape, kept, 0.1F, 3);
      const auto after = with_kept(before, kept_after(before, state_at(2)));
      EXPECT_TRUE(is_update_of(before, after, state_at(2), 1e-8F)) << name_of(kept.master) << name_of(kept.states);
      if (shape.numel() < 100) continue;
      auto other = before;  // control
      other.grad = random_tensor(cpu_, shape, DType::kF32, 77);
      EXPECT_FALSE(is_update_of(other, after, state_at(2), 1e-8F));
    }
}

TEST_F(CudaOptimizer, StatesAndWeightsInLessDoNotDependOnHowRowsAreCut) {
  for (const Kept kept : kKept)
    for (const int64_t width : {300, 77}) {
      const auto whole = random_kept(cpu_, {10, width}, kept, 0.1F, 5);
      const auto want = kept_after(whole, state_at(3));
      const auto got = kept_after(whole, state_at(3), [](const ops::AdamWTensor& t) {
        return std::vector{rows_of(t, 4, 6), rows_of(t, 0, 3), rows_of(t, 3, 1)};
      });
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i;
      auto moved = whole;
      moved.first_row = 1;
      const auto other = kept_after(moved, state_at(3));
      EXPECT_FALSE(same_bits(other[0], want[0]) && same_bits(other[1], want[1]));  // control
    }
}

// The same random numbers on both devices: only where f32 itself was rounded otherwise may a number be kept otherwise.
TEST_F(CudaOptimizer, RoundsAsTheCpuDoes) {
  for (const Kept kept : kKept) {
    const auto before = random_kept(cpu_, {64, 1000}, kept, 0.1F, 11);
    const auto card = kept_after(before, state_at(5));
    const auto host = copy_of(cpu_, before);
    const StepState state = state_at(5);
    ops::adamw(cpu_, {.tensors = std::vector{host}, .beta1 = kBeta1, .beta2 = kBeta2, .state = &state});
    for (const size_t i : {0U, 1U, 2U}) {
      const Tensor wanted = kept_tensors(host)[i];
      if (wanted.dtype() == DType::kF32) continue;
      const auto got = to_bytes(card[i]), want = to_bytes(wanted);
      int64_t differ = 0;
      for (size_t b = 0; b < got.size(); ++b) differ += got[b] != want[b] ? 1 : 0;
      EXPECT_LT(differ, std::ssize(got) / 1000) << name_of(kept.master) << name_of(kept.states) << i;
    }
  }
}

// The bits of the update without copies, and of the quantiser after it.
TEST_F(CudaOptimizer, QuantizesWeightsAsItUpdatesThem) {
  for (const DType states : kMxStates)
    for (const MxCase& c : kMxCases) {
      const auto before = random_weights(cpu_, c, states);
      const auto want = kept_after(before, state_at(2));
      const MxTensor apart = c.empty(cuda_), old = c.empty(cuda_), together = c.empty(cuda_);
      const auto quantized = [&](const Tensor& master, const MxTensor& out) {
        ops::mxfp8_quantize_weights(cuda_, {.w = device(master).reshape(c.matrices()), .out = out});
        return to_host(cpu_, out);
      };
      const auto got = kept_after(before, state_at(2), [&](const ops::AdamWTensor& t) {
        poison_on_device(together);
        std::vector<ops::AdamWTensor> with_copies{t};
        with_copies.front().mx = together;
        return with_copies;
      });
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i << to_string(c.shape);
      EXPECT_TRUE(same_bits(to_host(cpu_, together), quantized(want[0], apart))) << to_string(c.shape) << name_of(states);
      EXPECT_FALSE(same_bits(to_host(cpu_, together), quantized(before.master, old)));  // control
    }
}

TEST_F(CudaOptimizer, LeavesCopiesAloneWhenNotFinite) {
  for (const MxCase& c : {kMxCases[0], kMxCases[4]}) {
    StepState state = state_at(2);
    const auto before = random_weights(cpu_, c, DType::kF32);
    const auto quantized_after = [&] {
      const MxTensor mx = c.empty(cuda_);
      ops::mxfp8_quantize_weights(cuda_, {.w = device(before.master).reshape(c.matrices()), .out = mx});
      kept_after(before, state, [&](const ops::AdamWTensor& t) {
        std::vector<ops::AdamWTensor> with_copies{t};
        with_copies.front().mx = mx;
        return with_copies;
      });
      return to_host(cpu_, mx);
    };
    const MxTensor updated = quantized_after();
    state.finite = 0;
    const MxTensor want = c.empty(cpu_);
    ops::mxfp8_quantize_weights(cpu_, {.w = before.master.reshape(c.matrices()), .out = want});
    EXPECT_TRUE(same_bits(quantized_after(), want));
    EXPECT_FALSE(same_bits(updated, want));  // control
  }
}

TEST_F(CudaOptimizer, TheNormOfAllTensorsToOneRounding) {
  auto grads = gradients(cpu_);
  grads.push_back(random_tensor(cpu_, {200001}, DType::kF32, 9));
  double squares = 0;
  for (const Tensor& grad : grads) squares += cpu::ref::sum_of_squares(to_double(grad));
  const double want = std::sqrt(squares);
  const StepState state = norm_of(grads, 1.0F);
  EXPECT_NEAR(state.grad_norm, want, want * kU * 1.001);
  EXPECT_NEAR(state.clip_factor, 1.0 / (want + 1e-6), 4 * kU / want);
  EXPECT_EQ(state.finite, 1);
  EXPECT_EQ(norm_of(grads, 0.0F).clip_factor, 1.0F);
  EXPECT_EQ(norm_of(grads, 1e6F).clip_factor, 1.0F);
  EXPECT_GT(std::abs(norm_of({grads.begin() + 1, grads.end()}, 1.0F).grad_norm - want), want * kU * 2);  // control
  EXPECT_EQ(norm_of({}, 1.0F).grad_norm, 0.0F);
  EXPECT_NEAR(norm_of({tensor_of(cpu_, {2}, DType::kF32, {3e30, 4e30})}, 1.0F).grad_norm / 5e30, 1.0, 2 * kU);
}

TEST_F(CudaOptimizer, MoreTensorsThanALaunchTakes) {
  std::vector<Moments> all;
  std::vector<Tensor> grads;
  double squares = 0;
  for (uint64_t i = 0; i < 1100; ++i) {
    grads.push_back(random_tensor(cpu_, {3}, DType::kF32, 100 + i));
    squares += cpu::ref::sum_of_squares(to_double(grads.back()));
    if (i < 600) all.emplace_back(cpu_, Shape{5}, 1000 + 10 * i);
  }
  EXPECT_NEAR(norm_of(grads, 0).grad_norm, std::sqrt(squares), std::sqrt(squares) * kU * 1.001);
  const auto got = step(all, 0.1F, state_at(2), 1e-8F);
  for (size_t i = 0; i < all.size(); ++i) {
    const Expected want = expected(all[i], state_at(2), 0.1F, 1e-8F);
    ASSERT_TRUE(within(got[4 * i], want.p, want.p_bound)) << i;
  }
}

TEST_F(CudaOptimizer, TheNormInTwoHalves) {
  const auto grads = gradients(cpu_);
  std::vector<Tensor> there;
  for (const Tensor& grad : grads) there.push_back(device(grad));
  const Tensor sum = poisoned_there({1}, DType::kF64), state = state_there({.clip_norm = 1.0F});
  ops::sum_of_squares(cuda_, {there, sum});
  ops::norm_of_squares(cuda_, {sum, pointer(state)});
  StepState got;
  std::memcpy(&got, host(state).raw(), sizeof(got));
  const StepState want = norm_of(grads, 1.0F);
  EXPECT_EQ(got.grad_norm, want.grad_norm);
  EXPECT_EQ(got.clip_factor, want.clip_factor);
}

TEST_F(CudaOptimizer, OneBadElementAnywhereIsSeen) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (size_t tensor : {0U, 1U, 3U, 4U}) {
      const auto grads = gradients(cpu_);
      grads[tensor].span<float>().back() = bad;
      const StepState state = norm_of(grads, 1.0F);
      EXPECT_EQ(state.finite, 0);
      EXPECT_FALSE(std::isfinite(state.grad_norm));
    }
}

TEST_F(CudaOptimizer, AdamWMatchesTheReference) {
  for (float decay : {0.0F, 0.1F})
    for (int64_t at : {1, 2, 1000}) {
      std::vector<Moments> all;
      for (const Shape& shape : {Shape{1}, Shape{17}, Shape{3, 80}, Shape{40000}, Shape{0}, Shape{4099}})
        all.emplace_back(cpu_, shape, 1 + 10 * all.size());
      const auto got = step(all, decay, state_at(at), 1e-8F);
      for (size_t i = 0; i < all.size(); ++i) {
        const Expected want = expected(all[i], state_at(at), decay, 1e-8F);
        const Tensor &p = got[4 * i], &working = got[4 * i + 3];
        ASSERT_TRUE(within(p, want.p, want.p_bound)) << i;
        ASSERT_TRUE(within(got[4 * i + 1], want.m, want.m_bound)) << i;
        ASSERT_TRUE(within(got[4 * i + 2], want.v, want.v_bound)) << i;
        for (size_t j = 0; j < want.p.size(); ++j) ASSERT_EQ(working.span<bf16>()[j].bits, bf16(p.span<float>()[j]).bits);
        if (p.numel() < 17) continue;
        EXPECT_FALSE(within(p, expected(all[i], state_at(at), decay + 0.01F, 1e-8F).p, want.p_bound));  // control
      }
    }
}

TEST_F(CudaOptimizer, NothingIsTouchedWhenNotFinite) {
  const Moments t(cpu_, {1000}, 5);
  StepState state = state_at(3);
  state.finite = 0;
  const auto got = step({t}, 0.1F, state, 1e-8F);
  EXPECT_TRUE(same_bits(got[0], t.master) && same_bits(got[1], t.m) && same_bits(got[2], t.v) && same_bits(got[3], t.working));
  state.finite = 1;
  EXPECT_FALSE(same_bits(step({t}, 0.1F, state, 1e-8F)[0], t.master));  // control
}

// As a shard may: at no multiple of 16 bytes, and without a working copy.
TEST_F(CudaOptimizer, TensorsThatBeginAnywhere) {
  const Moments t(cpu_, {1003}, 6);
  const auto want = step({t}, 0.1F, state_at(2), 1e-8F);
  const auto part = [&](const Tensor& host) {
    const Tensor whole = cuda_.empty({host.numel() + 1}, host.dtype());
    copy_to_device(whole.rows(1, host.numel()), host);
    return whole.rows(1, host.numel());
  };
  const std::vector<ops::AdamWTensor> tensors{{part(t.master), part(t.grad), part(t.m), part(t.v), {}, 0.1F}};
  const Tensor state = state_there(state_at(2));
  ops::adamw(cuda_, {.tensors = tensors, .beta1 = kBeta1, .beta2 = kBeta2, .eps = 1e-8F, .state = pointer(state)});
  EXPECT_TRUE(same_bits(host(tensors[0].master), want[0]));
  EXPECT_TRUE(same_bits(host(tensors[0].v), want[2]));
  const Tensor norm = state_there({});
  ops::grad_norm(cuda_, {std::vector{tensors[0].grad}, pointer(norm)});
  StepState got;
  std::memcpy(&got, host(norm).raw(), sizeof(got));
  EXPECT_NEAR(got.grad_norm, norm_of({t.grad}, 0).grad_norm, got.grad_norm * 2 * kU);
}

}  // namespace
}  // namespace cistron::test
