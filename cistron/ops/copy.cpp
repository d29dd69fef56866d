#include "cistron/ops/copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace cistron::ops {

namespace {

bool on_host(const Tensor& tensor) { return tensor.device().is_cpu(); }

Tensor as_bytes(const Tensor& tensor) { return Tensor::view(tensor.raw(), {tensor.bytes()}, DType::kU8, tensor.device()); }

std::span<std::byte> bytes_of(const Tensor& host) {
  return {static_cast<std::byte*>(host.raw()), static_cast<size_t>(host.bytes())};
}

/// Calls `f(begin, host buffer)` for each piece of `tensor`.
template <class F>
void for_pieces(const Tensor& tensor, F&& f) {
  std::vector<uint8_t> buffer(static_cast<size_t>(std::min(kStagingBytes, tensor.bytes())));
  for (int64_t begin = 0; begin < tensor.bytes(); begin += kStagingBytes) {
    const auto size = static_cast<size_t>(std::min(kStagingBytes, tensor.bytes() - begin));
    f(begin, Tensor::view(std::span(buffer).first(size)));
  }
}

}  // namespace

void copy(Context& ctx, const Copy& args) {
  check_tensor("copy", "out", args.out, args.x.shape(), args.x.dtype());
  if (ctx.device.is_meta() || args.x.numel() == 0) return;
  if (!on_host(args.x) || !on_host(args.out)) return cuda::copy(ctx, args);
  std::memcpy(args.out.raw(), args.x.raw(), static_cast<size_t>(args.x.bytes()));
}

void read_pieces(Context& ctx, const Tensor& x, const std::function<void(std::span<const std::byte>)>& take) {
  if (x.device().is_meta()) return;
  if (on_host(x)) return take(bytes_of(x));
  for_pieces(x, [&](int64_t begin, const Tensor& buffer) {
    copy(ctx, {.x = as_bytes(x).rows(begin, buffer.dim(0)), .out = buffer});
    take(bytes_of(buffer));
  });
}

void write_pieces(Context& ctx, const Tensor& out, const std::function<void(int64_t, std::span<std::byte>)>& fill) {
  if (out.device().is_meta()) return;
  if (on_host(out)) return fill(0, bytes_of(out));
  for_pieces(out, [&](int64_t begin, const Tensor& buffer) {
    fill(begin, bytes_of(buffer));
    copy(ctx, {.x = buffer, .out = as_bytes(out).rows(begin, buffer.dim(0))});
  });
}

}  // namespace cistron::ops
