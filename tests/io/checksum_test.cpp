#include "cistron/io/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cistron/core/rng.h"

namespace cistron::io {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// xxHash's own test vectors: its sanity buffer (xxhash/cli/xsum_sanity_check.c), seeds 0 and 2654435761.
TEST(Checksum, Xxh64AgreesWithItsSpecification) {
  std::vector<std::byte> buffer(222);
  uint64_t generator = 2654435761U;
  for (auto& byte : buffer) {
    byte = static_cast<std::byte>(generator >> 56);
    generator *= 11400714785074694797ULL;
  }
  const auto of = [&](size_t size, uint64_t seed) { return xxh64(std::span(buffer).first(size), seed); };
  EXPECT_EQ(of(0, 0), 0xEF46DB3751D8E999u);
  EXPECT_EQ(of(0, 2654435761U), 0xAC75FDA2929B17EFu);
  EXPECT_EQ(of(1, 0), 0xE934A84ADB052768u);
  EXPECT_EQ(of(1, 2654435761U), 0x5014607643A9B4C3u);
  EXPECT_EQ(of(4, 0), 0x9136A0DCA57457EEu);
  EXPECT_EQ(of(14, 0), 0x8282DCC4994E35C8u);
  EXPECT_EQ(of(14, 2654435761U), 0xC3BD6BF63DEB6DF0u);
  EXPECT_EQ(of(222, 0), 0xB641AE8CB691C174u);
  EXPECT_EQ(of(222, 2654435761U), 0x20CB8AB7AE10C14Au);
}

TEST(Checksum, Xxh64InPiecesIsTheSame) {
  std::string text(1000, '\0');
  const Rng rng(1, 0);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(rng.bits(i));
  for (uint64_t trial = 0; trial < 200; ++trial) {
    Xxh64 hash;
    size_t at = 0;
    for (uint64_t k = 0; at < text.size(); ++k) {
      const size_t size = std::min<size_t>(text.size() - at, rng.below(5000 + 100 * trial + k, 80));
      hash.update(bytes_of(text).subspan(at, size));
      at += size;
    }
    ASSERT_EQ(hash.digest(), xxh64(text));
  }
  std::string other = text;
  other[500] ^= 1;
  EXPECT_NE(xxh64(other), xxh64(text));
}

// RFC 3720, B.4.
TEST(Checksum, Crc32cAgreesWithTheRfc) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(bytes_of(std::string(32, '\xff'))), 0x62A8AB43u);
  std::string ascending(32, '\0');
  for (size_t i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(bytes_of(ascending)), 0x46DD794Eu);
}

}  // namespace
}  // namespace cistron::io
