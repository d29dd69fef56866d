#include <algorithm>
#include <cmath>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/nn/mx_report.h"
#include "cistron/ops/copy.h"
#include "cistron/train/engine.h"

namespace cistron::train {

namespace {

template <class T>
bool has_nonfinite(std::span<const std::byte> bytes) {
  const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  return std::ranges::any_of(values, [](T x) { return !std::isfinite(static_cast<float>(x)); });
}

bool has_nonfinite(Context& ctx, const Tensor& tensor) {
  bool found = false;
  if (tensor.dtype() != DType::kF32 && tensor.dtype() != DType::kBF16) return found;
  ops::read_pieces(ctx, tensor, [&](std::span<const std::byte> piece) {
    found = found || (tensor.dtype() == DType::kF32 ? has_nonfinite<float>(piece) : has_nonfinite<bf16>(piece));
  });
  return found;
}

// Whoever looks at a pass's values, until it ends, however it does.
class Observed {
 public:
  template <class Look>
  Observed(Context& ctx, const Look& look) : ctx_(ctx) {
    ctx_.observe = look;
  }
  ~Observed() { ctx_.observe = nullptr; }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  Context& ctx_;
};

// The least of the ranks' texts that are not empty, with the rank that gave it.
std::string first_of_ranks(dist::Communicator& world, const std::string& mine) {
  std::string first;
  const std::vector<std::string> all = dist::gather_texts(world, mine);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (const std::string text = fmt::format("{} on rank {}", all[rank], rank);
        !all[rank].empty() && (first.empty() || text < first))
      first = text;
  return first;
}

}  // namespace

std::vector<ops::TimedOperation> Engine::profile(std::span<const nn::Batch> micro_batches, double label_weight) {
  const auto timer = ops::make_timer(ctx_);
  ++state_.step;
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  constexpr double kAheadMilliseconds = 50;  // longer than the host needs to queue a step
  timer->start(kAheadMilliseconds);
  ctx_.timer = timer.get();
  run_step();
  ctx_.timer = nullptr;
  return timer->finish();
}

std::string Engine::find_nonfinite(std::span<const nn::Batch> micro_batches, double label_weight) {
  std::string first;
  int64_t seen = 0;
  const auto look = [&](std::string_view module, const Tensor& value) {
    ++seen;
    if (first.empty() && has_nonfinite(ctx_, value)) first = fmt::format("{:012} {}", seen, module);  // sorted by place
  };
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  with_room([&] {
    first.clear();
    seen = 0;
    const Observed observed(ctx_, look);
    backward();
  });
  for (const auto& entry : parameters_->entries())
    if (entry.grad.defined()) look("gradient of " + entry.parameter->name, entry.grad);
  if (ctx_.mesh != nullptr) first = first_of_ranks(ctx_.mesh->world(), first);
  return first.empty() ? first : first.substr(first.find(' ') + 1);
}

Engine::Underflow Engine::underflow(std::span<const nn::Batch> micro_batches, double label_weight) {
  CISTRON_CHECK(options_.storage.gradients && ctx_.mesh == nullptr,
                "[engine] underflow is counted on one rank that keeps gradients");
  Underflow sums;
  const auto look = [&](std::string_view what, const Tensor& value) {
    if (value.dtype() != DType::kI64) return;
    const auto counts = value.span<int64_t>();
    (what == nn::kMxGradients ? sums.gradients : sums.activations) +=
        {.elements = counts[0], .subnormal = counts[1], .zero = counts[2]};
  };
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  const Observed observed(ctx_, look);
  backward();
  for (const auto& entry : parameters_->entries())
    if (entry.mx.rows.defined()) sums.weights += ops::mxfp8_underflow(ctx_, entry.mx.rows);
  return sums;
}

}  // namespace cistron::train
