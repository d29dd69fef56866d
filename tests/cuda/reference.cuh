#pragma once
#include "cistron/cuda/verify/reference.cuh"

namespace cistron::test {
using namespace cuda::verify;  // NOLINT(google-build-using-namespace)
}  // namespace cistron::test
