#include "cistron/io/checksum.h"

#include <bit>
#include <cstring>

namespace cistron::io {
namespace {

constexpr uint64_t kP1 = 0x9E3779B185EBCA87, kP2 = 0xC2B2AE3D27D4EB4F, kP3 = 0x165667B19E3779F9, kP4 = 0x85EBCA77C2B2AE63,
                   kP5 = 0x27D4EB2F165667C5;
constexpr size_t kStripe = 32;
static_assert(std::endian::native == std::endian::little);

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint64_t round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kP2, 31) * kP1; }

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kP1 + kP4; }

void consume(std::array<uint64_t, 4>& lanes, const std::byte* stripe) {
  for (size_t i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<uint64_t>(stripe + 8 * i));
}

uint64_t finish(uint64_t hash, const std::byte* p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) hash = std::rotl(hash ^ round(0, load<uint64_t>(p)), 27) * kP1 + kP4;
  for (; size >= 4; p += 4, size -= 4) hash = std::rotl(hash ^ (load<uint32_t>(p) * kP1), 23) * kP2 + kP3;
  for (; size > 0; ++p, --size) hash = std::rotl(hash ^ (static_cast<uint64_t>(*p) * kP5), 11) * kP1;
  hash = (hash ^ (hash >> 33)) * kP2;
  hash = (hash ^ (hash >> 29)) * kP3;
  return hash ^ (hash >> 32);
}

constexpr auto kCrcTable = [] {
  std::array<std::array<uint32_t, 256>, 8> table{};  // "slicing by 8"
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[0][i] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
  return table;
}();

}  // namespace

Xxh64::Xxh64(uint64_t seed) : seed_(seed), lanes_{seed + kP1 + kP2, seed + kP2, seed, seed - kP1} {}

void Xxh64::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  if (num_pending_ > 0) {
    const size_t take = std::min(kStripe - num_pending_, bytes.size());
    if (take > 0) std::memcpy(pending_.data() + num_pending_, bytes.data(), take);
    num_pending_ += take;
    bytes = bytes.subspan(take);
    if (num_pending_ < kStripe) return;
    consume(lanes_, pending_.data());
    num_pending_ = 0;
  }
  auto lanes = lanes_;  // kept in registers
  for (; bytes.size() >= kStripe; bytes = bytes.subspan(kStripe)) consume(lanes, bytes.data());
  lanes_ = lanes;
  if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
  num_pending_ = bytes.size();
}

uint64_t Xxh64::digest() const {
  uint64_t hash = seed_ + kP5;
  if (total_ >= kStripe) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = merge(hash, lane);
  }
  return finish(hash + total_, pending_.data(), num_pending_);
}

uint64_t xxh64(std::span<const std::byte> bytes, uint64_t seed) {
  Xxh64 hash(seed);
  hash.update(bytes);
  return hash.digest();
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const uint64_t word = load<uint64_t>(bytes.data()) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrcTable[7 - k][word >> (8 * k) & 0xff];
  }
  for (const std::byte byte : bytes) crc = crc >> 8 ^ kCrcTable[0][(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace cistron::io
