#pragma once
// Philox4x32-10, a counter-based generator: number i of stream (seed, stream) is a pure function of the three, so that any part
// of any sequence can be had without the rest. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#include <array>
#include <cstdint>

namespace cistron {

/// Four random words for this counter and key. Here, so that kernels on a card have it too.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  constexpr uint64_t kM0 = 0xD2511F53, kM1 = 0xCD9E8D57;
  constexpr uint32_t kW0 = 0x9E3779B9, kW1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kM0 * c[0], p1 = kM1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1],
         static_cast<uint32_t>(p0)};
    k[0] += kW0;
    k[1] += kW1;
  }
  return c;
}

class Rng {
 public:
  /// `stream` separates uses that share a seed: a parameter, an epoch, a record.
  Rng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  [[nodiscard]] uint64_t bits(uint64_t i) const;
  /// In [0, 1), 53 bits.
  [[nodiscard]] double uniform(uint64_t i) const;
  /// In [0, bound), with a bias under bound / 2^64.
  [[nodiscard]] uint64_t below(uint64_t i, uint64_t bound) const;
  /// Standard normal (Box-Muller).
  [[nodiscard]] double normal(uint64_t i) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

/// A stream number for a name: FNV-1a, 64 bits.
uint64_t stream_of(const char* name);

}  // namespace cistron
