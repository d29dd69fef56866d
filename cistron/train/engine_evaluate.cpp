#include <array>

#include "cistron/ops/elementwise.h"
#include "cistron/ops/publish.h"
#include "cistron/train/engine.h"

namespace cistron::train {

void Engine::evaluate_part(int64_t tokens) {
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  parameters_->begin_pass(nn::LocalParameters::Pass::kEvaluate);
  decoder_.evaluate(ctx_, evaluation_inputs_.batches()[0], nll_.rows(0, tokens), losses_);
  parameters_->end_pass();
}

Engine::Evaluation Engine::evaluate(const nn::Batch& batch) {
  ++evaluation_.step;
  evaluation_inputs_.upload(ctx_, std::span(&batch, 1), evaluation_);
  with_room([&] { evaluate_part(batch.num_tokens()); });
  const std::array parts{nll_};
  ops::publish(ctx_, {.parts = parts, .number = &evaluation_inputs_.state()->step, .out = published_nll_});
  Evaluation sums;
  if (ctx_.device.is_meta()) return sums;
  const auto bytes = ops::await_published(queue_.get(), published_nll_, evaluation_.step);
  const std::span nll(reinterpret_cast<const float*>(bytes.data()), static_cast<size_t>(batch.num_tokens()));
  const auto labels = batch.labels.span<int32_t>();
  for (size_t i = 0; i < nll.size(); ++i) {
    if (labels[i] < 0) continue;
    sums.nll += nll[i];
    ++sums.tokens;
  }
  sum_over_ranks(Tensor::view(std::span(&sums.nll, 1)));
  sum_over_ranks(Tensor::view(std::span(&sums.tokens, 1)));
  return sums;
}

}  // namespace cistron::train
