#pragma once
// Philox4x32-10, a counter-based generator: number i of stream (seed, stream) is a pure function of the three, so that any part
// of any sequence can be had without the rest. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#include <array>
#include <cstdint>

namespace cistron {

/// Four random words for this counter and key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

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
