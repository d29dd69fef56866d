#include "cistron/cuda/device/copy_rows.cuh"
#include "cistron/cuda/elementwise/map.cuh"
#include "cistron/ops/gather.h"

namespace cistron::cuda {
namespace {

struct ChoicesMap {
  const float* rows;
  const int32_t* token_rows;
  float* out;
  __device__ float load(int64_t i) const { return token_rows[i] < 0 ? 0.0F : rows[token_rows[i]]; }
  __device__ void store(int64_t i, float value) const { out[i] = value; }
};

}  // namespace

void gather(Context& ctx, const ops::Gather& args) {
  const DeviceGuard guard(ctx);
  const int32_t* end = device::pointer<const int32_t>(args.groups.starts) + args.groups.num_experts();
  device::copy_rows(ctx, args.x, args.groups.source_row, end, args.out, 0);
}

void gather_choices(Context& ctx, const ops::GatherChoices& args) {
  const DeviceGuard guard(ctx);
  launch_map(ctx, args.out.numel(),
             ChoicesMap{device::pointer<const float>(args.rows), device::pointer<const int32_t>(args.groups.token_rows),
                        device::pointer<float>(args.out)});
}

}  // namespace cistron::cuda
