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

namespace {

double to_unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// A block of the generator is two 64-bit numbers.
std::array<uint64_t, 2> pair(uint64_t seed, uint64_t stream, uint64_t block) {
  const auto words = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(stream),
                             static_cast<uint32_t>(stream >> 32)},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {static_cast<uint64_t>(words[1]) << 32 | words[0], static_cast<uint64_t>(words[3]) << 32 | words[2]};
}

}  // namespace

uint64_t Rng::bits(uint64_t i) const { return pair(seed_, stream_, i / 2)[i % 2]; }

double Rng::uniform(uint64_t i) const { return to_unit(bits(i)); }

uint64_t Rng::below(uint64_t i, uint64_t bound) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits(i)) * bound) >> 64);
}

double Rng::normal(uint64_t i) const {
  const auto [first, second] = pair(seed_, stream_, i);
  const double u1 = 1.0 - to_unit(first);  // (0, 1]: log stays finite
  return std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * to_unit(second));
}

uint64_t stream_of(const char* name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3ull;
  return hash;
}

}  // namespace cistron
