#pragma once
// Between host and device.
#include <functional>
#include <span>

#include "cistron/core/context.h"

namespace cistron::ops {

/// out[i] = x[i], of one shape and dtype, wherever the two lie; in the order of the context's queue. Blocks only where `out` is
/// the host's and `x` is not. Pageable memory of the host may be reused on return, pinned memory when the queue has come that
/// far.
struct Copy {
  const Tensor& x;
  const Tensor& out;
};
void copy(Context& ctx, const Copy& args);

/// The most bytes that the two functions below hold on the host.
constexpr int64_t kStagingBytes = int64_t{1} << 26;

/// Gives the tensor's bytes to `take`, in order, in pieces: on the CPU in one and where they lie, else through host memory.
void read_pieces(Context& ctx, const Tensor& x, const std::function<void(std::span<const std::byte> piece)>& take);

/// Has `fill` write each piece of the tensor, which starts at byte `begin` of it: on the CPU in place.
void write_pieces(Context& ctx, const Tensor& out, const std::function<void(int64_t begin, std::span<std::byte> piece)>& fill);

}  // namespace cistron::ops

namespace cistron::cuda {
void copy(Context& ctx, const ops::Copy& args);
}  // namespace cistron::cuda
