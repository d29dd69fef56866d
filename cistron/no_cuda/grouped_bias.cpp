#include "cistron/ops/grouped_bias.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void grouped_bias_backward(Context& ctx, const ops::GroupedBiasBackward&) {
  ops::throw_no_backend("grouped_bias_backward", ctx.device);
}

}  // namespace cistron::cuda
