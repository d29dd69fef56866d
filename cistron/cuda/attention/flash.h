#pragma once
// Our own attention for any card since sm_80, over packed sequences whose ends only the device knows. A tile is a run of tokens,
// whatever sequences they belong to: each token knows which columns (keys of a query, queries of a key) it meets, and a tile runs
// over all that one of its tokens meets. So the number of tiles depends on the number of tokens alone.
// Deterministic: each output has one writer, which adds in a fixed order.
#include "cistron/ops/attention.h"

namespace cistron::cuda::flash {

/// By tensor cores (mma.sync), softmax in f32, probabilities rounded to bf16 for the products: bf16, head_dim a multiple of 8 up
/// to 256, where a block's shared memory takes it.
bool mma_takes(const Context& ctx, DType dtype, const ops::AttentionShape& shape);
void mma_forward(Context& ctx, const ops::AttentionForward& args);
void mma_backward(Context& ctx, const ops::AttentionBackward& args);

/// On ordinary cores, all arithmetic in f32: f32 or bf16, any head_dim up to 256.
void simt_forward(Context& ctx, const ops::AttentionForward& args);
void simt_backward(Context& ctx, const ops::AttentionBackward& args);

/// delta[h, t] = sum over d of dout[t, h, d] out[t, h, d], f32.
void delta(Context& ctx, const ops::AttentionBackward& args);

}  // namespace cistron::cuda::flash
