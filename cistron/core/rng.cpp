#include "cistron/core/rng.h"

#include <cmath>
#include <numbers>

namespace cistron {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
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

uint64_t Rng::bits(uint64_t i) const {
  // A block of the generator gives two 64-bit numbers.
  const uint64_t block = i / 2;
  const auto words = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream_),
                             static_cast<uint32_t>(stream_ >> 32)},
                            {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  const size_t half = 2 * (i % 2);
  return static_cast<uint64_t>(words[half + 1]) << 32 | words[half];
}

double Rng::uniform(uint64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }

uint64_t Rng::below(uint64_t i, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(i)) * bound) >> 64);
}

double Rng::normal(uint64_t i) const {
  const double u1 = 1.0 - uniform(2 * i);  // (0, 1]: log stays finite
  const double u2 = uniform(2 * i + 1);
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
}

uint64_t stream_of(const char* name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3ull;
  return hash;
}

}  // namespace cistron
