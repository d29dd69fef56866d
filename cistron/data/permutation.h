#pragma once
#include <array>
#include <cstdint>

namespace cistron::data {

/// A bijection of [0, size), keyed, in no memory: a Feistel network over the next even number of bits, walked until it lands
/// inside (at most four steps on average). Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002).
class Permutation {
 public:
  /// size > 0; `epoch` makes another one for the same seed.
  Permutation(int64_t size, uint64_t seed, uint64_t epoch);
  [[nodiscard]] int64_t operator()(int64_t index) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace cistron::data
