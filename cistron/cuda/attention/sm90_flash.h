#pragma once
// Our own attention on Hopper, by wgmma: bf16, heads of 64, 80 or 128. Plan and arithmetic are those of flash.h's mma.
#include "cistron/ops/attention.h"

namespace cistron::cuda::flash::sm90 {

bool takes(DType dtype, const ops::AttentionShape& shape);
void forward(Context& ctx, const ops::AttentionForward& args);
void backward(Context& ctx, const ops::AttentionBackward& args);

}  // namespace cistron::cuda::flash::sm90
