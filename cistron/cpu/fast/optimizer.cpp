#include "cistron/ops/optimizer.h"

#include <cmath>
#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

using D8 = double __attribute__((vector_size(64)));

/// Elements [begin, end) of tensor number `tensor`: pieces of many tensors are one list of tasks.
struct Piece {
  size_t tensor;
  int64_t begin, end;
};

template <class Tensors, class Size>
std::vector<Piece> cut(const Tensors& tensors, Size&& size) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (int64_t begin = 0; begin < size(tensors[i]); begin += kTaskElements)
      pieces.push_back({i, begin, std::min(size(tensors[i]), begin + kTaskElements)});
  return pieces;
}

double sum_of_squares(const float* x, int64_t n) {
  D8 low{}, high{};
  for_lanes(n, [&](Lanes l) {
    float v[kLanes];
    store(v, l.load(x));
    for (int i = 0; i < 8; ++i) {
      low[i] += static_cast<double>(v[i]) * v[i];
      high[i] += static_cast<double>(v[i + 8]) * v[i + 8];
    }
  });
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += low[i] + high[i];
  return sum;
}

double sum_of_squares(const Context& ctx, std::span<const Tensor> tensors) {
  const auto pieces = cut(tensors, [](const Tensor& t) { return t.numel(); });
  std::vector<double> sums(pieces.size());
  ctx.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    sums[static_cast<size_t>(i)] = sum_of_squares(tensors[piece.tensor].data<float>() + piece.begin, piece.end - piece.begin);
  });
  double squares = 0;
  for (const double sum : sums) squares += sum;
  return squares;
}

void write_norm(StepState& state, double squares) {
  state.grad_norm = static_cast<float>(std::sqrt(squares));
  state.finite = std::isfinite(state.grad_norm) ? 1 : 0;
  const bool clips = state.clip_norm > 0 && state.finite != 0;
  state.clip_factor = clips ? std::min(1.0F, state.clip_norm / (state.grad_norm + 1e-6F)) : 1.0F;
}

struct Update {
  float beta1, beta2, eps, clip, lr, correction1, correction2;

  void operator()(const ops::AdamWTensor& t, const Piece& piece) const;
};

void Update::operator()(const ops::AdamWTensor& t, const Piece& piece) const {
  auto *p = t.master.data<float>() + piece.begin, *m = t.m.data<float>() + piece.begin, *v = t.v.data<float>() + piece.begin;
  const auto* grad = t.grad.data<float>() + piece.begin;
  bf16* working = t.working.defined() ? t.working.data<bf16>() + piece.begin : nullptr;
  const float shrink = lr * t.weight_decay;
  for_lanes(piece.end - piece.begin, [&](Lanes l) {
    const F16 g = l.load(grad) * clip;
    const F16 new_m = beta1 * l.load(m) + (1.0F - beta1) * g;
    const F16 new_v = beta2 * l.load(v) + (1.0F - beta2) * (g * g);
    F16 new_p = l.load(p);
    new_p -= shrink * new_p;
    new_p -= lr * (new_m / correction1) / (sqrt(new_v / correction2) + eps);
    l.store(m, new_m);
    l.store(v, new_v);
    l.store(p, new_p);
    if (working != nullptr) l.store(working, new_p);
  });
}

}  // namespace

void sum_of_squares(Context& ctx, const ops::SumOfSquares& args) { args.out.span<double>()[0] = sum_of_squares(ctx, args.grads); }

void norm_of_squares(Context& /*ctx*/, const ops::NormOfSquares& args) {
  write_norm(*args.state, args.squares.span<double>()[0]);
}

void grad_norm(Context& ctx, const ops::GradNorm& args) { write_norm(*args.state, sum_of_squares(ctx, args.grads)); }

void adamw(Context& ctx, const ops::AdamW& args) {
  const StepState& state = *args.state;
  if (state.finite == 0) return;
  const Update update{
      args.beta1, args.beta2, args.eps, state.clip_factor, state.learning_rate, state.bias_correction1, state.bias_correction2};
  const auto pieces = cut(args.tensors, [](const ops::AdamWTensor& t) { return t.master.numel(); });
  ctx.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const Piece& piece = pieces[static_cast<size_t>(i)];
    update(args.tensors[piece.tensor], piece);
  });
}

}  // namespace cistron::cpu
