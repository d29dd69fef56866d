#include "tests/ops/support.h"

#include <cstring>
#include <limits>

#include "cistron/core/rng.h"

namespace cistron::test {

namespace {

/// Calls f(index, element) over the elements of any dtype.
template <class F>
void visit(const Tensor& tensor, F&& f) {
  const auto each = [&](auto span) {
    for (size_t i = 0; i < span.size(); ++i) f(i, span[i]);
  };
  switch (tensor.dtype()) {
    case DType::kF32:
      return each(tensor.span<float>());
    case DType::kBF16:
      return each(tensor.span<bf16>());
    case DType::kF64:
      return each(tensor.span<double>());
    case DType::kI32:
      return each(tensor.span<int32_t>());
    case DType::kI64:
      return each(tensor.span<int64_t>());
    case DType::kU8:
      return each(tensor.span<uint8_t>());
  }
}

template <class T>
void assign(T& element, double value) {
  element = static_cast<T>(value);
}
void assign(bf16& element, double value) { element = bf16(static_cast<float>(value)); }

double as_double(bf16 element) { return static_cast<float>(element); }
template <class T>
double as_double(T element) {
  return static_cast<double>(element);
}

}  // namespace

CpuContext::CpuContext(int threads, Precision wanted) : threads_(threads) {
  arena = Arena::growing("test", Device{}, host_memory());
  pool = &threads_;
  precision = wanted;
}

Context meta_context(Precision precision) {
  Context ctx;
  ctx.device = Device{DeviceKind::kMeta};
  ctx.arena = Arena::meta("test");
  ctx.precision = precision;
  return ctx;
}

Tensor random_tensor(const Context& ctx, const Shape& shape, DType dtype, uint64_t seed, double scale) {
  Tensor tensor = ctx.empty(shape, dtype);
  const Rng rng(seed, stream_of("tests/random_tensor"));
  if (tensor.raw() != nullptr) visit(tensor, [&](size_t i, auto& element) { assign(element, scale * rng.normal(i)); });
  return tensor;
}

Tensor random_ints(const Context& ctx, const Shape& shape, uint64_t seed, int32_t bound) {
  Tensor tensor = ctx.empty(shape, DType::kI32);
  const Rng rng(seed, stream_of("tests/random_ints"));
  if (tensor.raw() == nullptr) return tensor;
  visit(tensor,
        [&](size_t i, auto& element) { assign(element, static_cast<double>(rng.below(i, static_cast<uint64_t>(bound)))); });
  return tensor;
}

Tensor tensor_of(const Context& ctx, const Shape& shape, DType dtype, const std::vector<double>& values) {
  Tensor tensor = ctx.empty(shape, dtype);
  CISTRON_CHECK(static_cast<size_t>(tensor.numel()) == values.size(), "{} values for {}", values.size(), to_string(shape));
  if (tensor.raw() != nullptr) visit(tensor, [&](size_t i, auto& element) { assign(element, values[i]); });
  return tensor;
}

void poison(const Tensor& tensor) {
  visit(tensor, [](size_t, auto& element) {
    using T = std::remove_reference_t<decltype(element)>;
    if constexpr (std::is_integral_v<T>)
      element = std::numeric_limits<T>::max();
    else
      assign(element, std::numeric_limits<double>::quiet_NaN());
  });
}

Tensor poisoned(const Context& ctx, const Shape& shape, DType dtype) {
  Tensor tensor = ctx.empty(shape, dtype);
  if (tensor.raw() != nullptr) poison(tensor);
  return tensor;
}

Tensor copy_of(const Context& ctx, const Tensor& tensor) {
  Tensor copy = ctx.empty(tensor.shape(), tensor.dtype());
  if (tensor.numel() > 0) std::memcpy(copy.raw(), tensor.raw(), static_cast<size_t>(tensor.bytes()));
  return copy;
}

std::vector<double> to_double(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  visit(tensor, [&](size_t i, auto element) { values[i] = as_double(element); });
  return values;
}

cpu::ref::Matrix<double> to_matrix(const Tensor& tensor) {
  const int64_t cols = tensor.dim(tensor.shape().rank() - 1);
  return {cols == 0 ? 0 : tensor.numel() / cols, cols, to_double(tensor)};
}

double unit_roundoff(DType dtype) {
  if (dtype == DType::kBF16) return 0x1p-8;
  return dtype == DType::kF32 ? 0x1p-24 : 0x1p-53;
}

testing::AssertionResult within(const std::vector<double>& got, const std::vector<double>& want,
                                const std::vector<double>& bound) {
  if (got.size() != want.size() || got.size() != bound.size())
    return testing::AssertionFailure() << got.size() << " elements against " << want.size() << ", bounds " << bound.size();
  double worst = 0;
  size_t at = got.size();
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = got[i] == want[i] ? 0.0 : std::abs(got[i] - want[i]);
    if (error <= bound[i]) continue;
    const double excess = bound[i] > 0 && error / bound[i] >= 0 ? error / bound[i] : std::numeric_limits<double>::infinity();
    if (at == got.size() || excess > worst) {
      worst = excess;
      at = i;
    }
  }
  if (at == got.size()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format("worst at {} of {}: got {:.9g}, want {:.9g}, error {:.3g}, bound {:.3g}", at,
                                                    got.size(), got[at], want[at], std::abs(got[at] - want[at]), bound[at]);
}

testing::AssertionResult within(const Tensor& got, const std::vector<double>& want, const std::vector<double>& bound) {
  return within(to_double(got), want, bound);
}

testing::AssertionResult within(const Tensor& got, const std::vector<double>& want, double bound) {
  return within(got, want, std::vector<double>(want.size(), bound));
}

testing::AssertionResult same_bits(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape() || got.dtype() != want.dtype())
    return testing::AssertionFailure() << to_string(got.shape()) << " against " << to_string(want.shape());
  const auto* a = static_cast<const std::byte*>(got.raw());
  const auto* b = static_cast<const std::byte*>(want.raw());
  for (int64_t i = 0; i < got.bytes(); ++i)
    if (a[i] != b[i]) return testing::AssertionFailure() << "element " << i / size_of(got.dtype()) << " differs";
  return testing::AssertionSuccess();
}

testing::AssertionResult same_for_any_threads(const std::function<std::vector<Tensor>(Context&)>& run) {
  CpuContext one(1);
  const std::vector<Tensor> want = run(one);
  for (int threads : {2, 5}) {
    CpuContext many(threads);
    const std::vector<Tensor> got = run(many);
    for (size_t i = 0; i < want.size(); ++i)
      if (auto same = same_bits(got[i], want[i]); !same) return same << " (tensor " << i << ", " << threads << " threads)";
  }
  return testing::AssertionSuccess();
}

std::vector<double> numeric_gradient(const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
                                     double h) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double above = f(x);
    x[i] = kept - h;
    gradient[i] = (above - f(x)) / (2 * h);
    x[i] = kept;
  }
  return gradient;
}

}  // namespace cistron::test
