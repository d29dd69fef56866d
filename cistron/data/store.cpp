#include "cistron/data/store.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cistron/core/checked.h"
#include "cistron/data/store_format.h"
#include "cistron/io/checksum.h"
#include "cistron/io/json.h"
#include "cistron/io/mapped_file.h"

namespace cistron::data {
namespace {

constexpr std::string_view kPrepareAgain = "make the store again with cistron prepare";

[[noreturn]] void refuse(std::string_view what, const std::filesystem::path& where) {
  throw Error(ErrorKind::kBadData, what, where.string(), kPrepareAgain);
}

nlohmann::json read_manifest(const std::filesystem::path& path) {
  if (!io::is_reachable(path))
    throw Error(ErrorKind::kBadData, "not a token store", path.parent_path().string(), "cistron prepare makes one");
  const io::MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  nlohmann::json manifest = io::parse_json(text, path.string());
  if (!manifest.is_object() || manifest.value("format", nlohmann::json()) != kStoreFormat)
    refuse("not a token store's manifest", path);
  if (manifest.value("version", nlohmann::json()) != kStoreVersion)
    refuse(fmt::format("the store is of version {}, this program reads {}", manifest.value("version", nlohmann::json()).dump(),
                       kStoreVersion),
           path);
  nlohmann::json body = manifest;
  body.erase("checksum");
  if (manifest.value("checksum", nlohmann::json()) != io::xxh64(body.dump())) refuse("the manifest was altered", path);
  return manifest;
}

// The header of a file whose payload is whole and is the one that the manifest means.
StoreHeader read_header(const io::MappedFile& file, StoreFileKind kind, const nlohmann::json& expected) {
  StoreHeader header;
  if (file.bytes().size() < sizeof header) refuse("the file is cut short", file.path());
  std::memcpy(&header, file.bytes().data(), sizeof header);
  if (std::memcmp(header.magic, kStoreMagic, sizeof kStoreMagic) != 0 || header.kind != kind)
    refuse("not a file of a token store", file.path());
  if (header.version != kStoreVersion)
    refuse(fmt::format("the file is of version {}, this program reads {}", header.version, kStoreVersion), file.path());
  if (header.payload_bytes != file.bytes().size() - sizeof header)
    refuse("the file's length is not what its header says", file.path());
  if (header.count != expected.at("count") || header.checksum != expected.at("checksum") ||
      header.payload_bytes != expected.at("bytes") ||
      std::any_of(std::begin(header.zeros), std::end(header.zeros), [](uint32_t z) { return z != 0; }))
    refuse("the file is not the one that the manifest describes", file.path());
  if (io::xxh64(file.bytes().subspan(sizeof header)) != header.checksum)
    refuse("the checksum does not fit the contents", file.path());
  return header;
}

template <class T>
int64_t largest(const std::byte* tokens, uint64_t count) {
  T most = 0;
  for (uint64_t i = 0; i < count; ++i) most = std::max(most, reinterpret_cast<const T*>(tokens)[i]);
  return most;
}

bool ascends(std::span<const uint64_t> starts, uint64_t end) {
  return starts.front() == 0 && starts.back() == end && std::is_sorted(starts.begin(), starts.end());
}

}  // namespace

std::string_view name_of(Split split) { return split == Split::kTrain ? "train" : "valid"; }

std::string_view StoreSplit::id(int64_t record) const {
  const uint64_t begin = id_starts_[static_cast<size_t>(record)], end = id_starts_[static_cast<size_t>(record) + 1];
  return {ids_ + begin, end - begin};
}

void StoreSplit::copy_tokens(int64_t record, int64_t begin, std::span<int32_t> out) const {
  CISTRON_CHECK(begin >= 0 && begin + std::ssize(out) <= length(record), "tokens [{}, {}) of record {}, which has {}", begin,
                begin + std::ssize(out), record, length(record));
  const uint64_t first = token_starts_[static_cast<size_t>(record)] + static_cast<uint64_t>(begin);
  if (token_bytes_ == 1)
    std::copy_n(reinterpret_cast<const uint8_t*>(tokens_) + first, out.size(), out.begin());
  else
    std::copy_n(reinterpret_cast<const uint16_t*>(tokens_) + first, out.size(), out.begin());
  if (!out.empty() && *std::ranges::max_element(out) >= vocab_size_)
    throw Error(ErrorKind::kBadData, "the store was changed while it was read", tokens_file_->path().string(),
                "write a store to a place of its own (prepare does), and start again from a whole one");
}

void StoreSplit::open(const std::filesystem::path& directory, int64_t vocab_size, const nlohmann::json& manifest) {
  tokens_file_ = std::make_shared<io::MappedFile>(directory / "tokens.bin");
  records_file_ = std::make_shared<io::MappedFile>(directory / "records.bin");
  const StoreHeader tokens = read_header(*tokens_file_, StoreFileKind::kTokens, manifest.at("tokens"));
  const StoreHeader records = read_header(*records_file_, StoreFileKind::kRecords, manifest.at("records"));
  vocab_size_ = vocab_size;
  token_bytes_ = vocab_size <= 256 ? 1 : 2;
  if (tokens.token_bytes != token_bytes_ || tokens.payload_bytes / tokens.token_bytes != tokens.count ||
      tokens.payload_bytes % tokens.token_bytes != 0)
    refuse("the tokens' width is wrong", tokens_file_->path());
  if (records.token_bytes != 0 || records.count >= records.payload_bytes / 16)
    refuse("the record index does not fit", records_file_->path());

  const auto payload = records_file_->bytes().subspan(sizeof(StoreHeader));
  const auto* starts = reinterpret_cast<const uint64_t*>(payload.data());
  token_starts_ = {starts, records.count + 1};
  id_starts_ = {starts + records.count + 1, records.count + 1};
  ids_ = reinterpret_cast<const char*>(starts + 2 * (records.count + 1));
  tokens_ = tokens_file_->bytes().data() + sizeof(StoreHeader);
  if (tokens.count > 0 && (token_bytes_ == 1 ? largest<uint8_t> : largest<uint16_t>)(tokens_, tokens.count) >= vocab_size)
    refuse("a token that the tokenizer does not have", tokens_file_->path());
  if (!ascends(token_starts_, tokens.count) || !ascends(id_starts_, payload.size() - 16 * (records.count + 1)))
    refuse("the record index does not fit", records_file_->path());
}

Store Store::open(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "manifest.json";
  const nlohmann::json manifest = read_manifest(path);
  Store store;
  store.directory_ = directory;
  try {
    store.fingerprint_ = manifest.at("checksum");
    store.tokenizer_ = make_tokenizer(manifest.at("tokenizer").get<std::string>());
    if (manifest.at("vocab_size") != store.tokenizer().vocab_size())
      refuse("the tokenizer had another vocabulary when the store was made", path);
    for (const Split split : {Split::kTrain, Split::kValid})
      store.splits_[static_cast<size_t>(split)].open(directory / name_of(split), store.tokenizer().vocab_size(),
                                                     manifest.at("splits").at(std::string(name_of(split))));
  } catch (const nlohmann::json::exception&) {
    refuse("the manifest lacks a key", path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUsage) throw;
    throw Error(ErrorKind::kBadData, error.what());  // an unknown tokenizer, which here is the data's fault
  }
  return store;
}

}  // namespace cistron::data
