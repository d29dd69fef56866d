#pragma once
#include <array>
#include <cstdint>

namespace cistron::cuda::device {

/// As cistron::philox, in 32-bit instructions: the compiler makes 64-bit ones of that, ten times as many.
__device__ __forceinline__ std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  constexpr uint32_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57, kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(kM0, c[0]), low0 = kM0 * c[0], high1 = __umulhi(kM1, c[2]), low1 = kM1 * c[2];
    c = {high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0};
    k[0] += kW0;
    k[1] += kW1;
  }
  return c;
}

}  // namespace cistron::cuda::device
