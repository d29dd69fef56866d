#include "cistron/data/permutation.h"

#include <algorithm>
#include <bit>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"

namespace cistron::data {
namespace {

// The finisher of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, uint64_t epoch) : size_(static_cast<uint64_t>(size)) {
  CISTRON_CHECK(size > 0, "a permutation of {} elements", size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
  const Rng rng(seed, stream_of("data.permutation"));
  for (size_t round = 0; round < keys_.size(); ++round) keys_[round] = rng.bits(epoch * kRounds + round);
}

int64_t Permutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right ^ key) & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace cistron::data
