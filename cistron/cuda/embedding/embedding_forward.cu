#include "cistron/cuda/device/copy_rows.cuh"
#include "cistron/ops/embedding.h"

namespace cistron::cuda {

void embedding_forward(Context& ctx, const ops::EmbeddingForward& args) {
  constexpr uint16_t kNaN = 0xffff;  // twice makes one of f32
  const DeviceGuard guard(ctx);
  device::copy_rows(ctx, args.table, args.tokens, nullptr, args.out, kNaN);
}

}  // namespace cistron::cuda
