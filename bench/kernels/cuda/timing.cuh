#pragma once
#include "cistron/cuda/verify/timing.cuh"

namespace cistron::bench {
using namespace cuda::verify;  // NOLINT(google-build-using-namespace)
}  // namespace cistron::bench
