#pragma once
// Dense products by cuBLASLt where it is found at run time (`runtime/library.h`): bf16, and f32 in true f32. Deterministic: its
// plan depends on the sizes, pitches and alignments alone, and partial sums are never added in place. Captured into a graph, its
// workspace is the product's own.
#include "cistron/cuda/gemm/dense.h"

namespace cistron::cuda::cublaslt {

/// "" where it can be used, or why not.
const std::string& problem();

/// False where cuBLASLt is not there, or has no kernel for this product.
bool dense(Context& ctx, const DenseProduct& p);

}  // namespace cistron::cuda::cublaslt
