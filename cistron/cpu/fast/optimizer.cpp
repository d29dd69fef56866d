#include "cistron/ops/optimizer.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/tensor_pieces.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

double sum_of_squares(const float* x, int64_t n) {
  D8 first{}, last{};
  for_lanes(n, [&](Lanes l) {
    __builtin_prefetch(x + l.begin + 1024);  // one stream waits for memory otherwise
    const F16 v = l.load(x);
    const D8 a = first_doubles(v), b = last_doubles(v);
    first += a * a;
    last += b * b;
  });
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += first[i] + last[i];
  return sum;
}

double sum_of_squares(const Context& ctx, std::span<const Tensor> tensors) {
  const auto pieces = cut_tensors(tensors, kTaskElements, [](const Tensor& t) { return t.numel(); });
  std::vector<double> sums(pieces.size());
  ctx.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    const TensorPiece& piece = pieces[static_cast<size_t>(i)];
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

}  // namespace

void sum_of_squares(Context& ctx, const ops::SumOfSquares& args) { args.out.span<double>()[0] = sum_of_squares(ctx, args.grads); }

void norm_of_squares(Context& /*ctx*/, const ops::NormOfSquares& args) {
  const auto squares = args.squares.span<double>();
  write_norm(*args.state, std::accumulate(squares.begin(), squares.end(), 0.0));
}

void grad_norm(Context& ctx, const ops::GradNorm& args) { write_norm(*args.state, sum_of_squares(ctx, args.grads)); }

}  // namespace cistron::cpu
