#include "cistron/ops/elementwise.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

/// f(Lanes) over all elements of a tensor of `n`, in threads.
template <class F>
void for_elements(const Context& ctx, int64_t n, F&& f) {
  for_chunks(ctx, n, kTaskElements, [&](int64_t begin, int64_t end) {
    for_lanes(end - begin, [&](Lanes lanes) { f(Lanes{begin + lanes.begin, lanes.count}); });
  });
}

template <class In, class Out>
void cast_elements(const Context& ctx, const Tensor& x, const Tensor& out) {
  const auto* from = x.data<In>();
  auto* to = out.data<Out>();
  for_elements(ctx, x.numel(), [=](Lanes l) { l.store(to, l.load(from)); });
}

}  // namespace

void cast(Context& ctx, const ops::Cast& args) {
  with_float_type(args.x.dtype(), [&](auto in) {
    with_float_type(args.out.dtype(), [&](auto out) { cast_elements<decltype(in), decltype(out)>(ctx, args.x, args.out); });
  });
}

void add(Context& ctx, const ops::Add& args) {
  if (args.out.dtype() == DType::kF64) {
    const auto a = args.a.span<double>(), b = args.b.span<double>();
    std::transform(a.begin(), a.end(), b.begin(), args.out.span<double>().begin(), std::plus<>());
    return;
  }
  with_float_type(args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    const T *a = args.a.data<T>(), *b = args.b.data<T>();
    T* out = args.out.data<T>();
    for_elements(ctx, args.out.numel(), [=](Lanes l) { l.store(out, l.load(a) + l.load(b)); });
  });
}

void zero(Context& ctx, const ops::Zero& args) {
  auto* bytes = static_cast<std::byte*>(args.out.raw());
  for_chunks(ctx, args.out.bytes(), 4 * kTaskElements,
             [=](int64_t begin, int64_t end) { std::memset(bytes + begin, 0, static_cast<size_t>(end - begin)); });
}

void clamp(Context& ctx, const ops::Clamp& args) {
  with_float_type(args.x.dtype(), [&](auto type) {
    auto* x = args.x.data<decltype(type)>();
    const float limit = args.limit;
    for_elements(ctx, args.x.numel(), [=](Lanes l) { l.store(x, at_least(at_most(l.load(x), limit), -limit)); });
  });
}

void clamp_backward(Context& ctx, const ops::ClampBackward& args) {
  with_float_type(args.clamped.dtype(), [&](auto of_clamped) {
    with_float_type(args.dx.dtype(), [&](auto of_dx) {
      const auto* clamped = args.clamped.data<decltype(of_clamped)>();
      auto* dx = args.dx.data<decltype(of_dx)>();
      // The output holds the limit as its dtype rounds it.
      const auto limit = static_cast<float>(decltype(of_clamped)(args.limit));
      for_elements(ctx, args.dx.numel(), [=](Lanes l) {
        const F16 c = l.load(clamped);
        const F16 inside = c >= limit ? F16{} : l.load(dx);
        l.store(dx, c <= -limit ? F16{} : inside);
      });
    });
  });
}

}  // namespace cistron::cpu
