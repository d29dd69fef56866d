#pragma once
// What the store's writer and reader share (store.h describes it).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cistron::data {

constexpr char kStoreMagic[8] = {'C', 'I', 'S', 'T', 'R', 'O', 'N', '\n'};
constexpr uint32_t kStoreVersion = 1;
constexpr const char* kStoreFormat = "cistron token store";

enum class StoreFileKind : uint32_t { kTokens = 1, kRecords = 2 };

struct StoreHeader {
  char magic[8] = {'C', 'I', 'S', 'T', 'R', 'O', 'N', '\n'};
  uint32_t version = kStoreVersion;
  StoreFileKind kind{};
  uint64_t count = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
  uint32_t token_bytes = 0;
  uint32_t zeros[5] = {};
};
static_assert(sizeof(StoreHeader) == 64 && std::is_trivially_copyable_v<StoreHeader>);

}  // namespace cistron::data
