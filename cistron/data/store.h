#pragma once
// The token store that `cistron prepare` makes: memory-mapped, whole or absent, checked when it is opened.
//   STORE/manifest.json                {"format", "version", "tokenizer", "vocab_size", "splits": {...}, "report": {...},
//   "checksum"} STORE/{train,valid}/tokens.bin     header, then every record's tokens end to end, begin and end tokens included;
//   u8 or u16 STORE/{train,valid}/records.bin    header, then u64 token_starts[N + 1], u64 id_starts[N + 1], the identifiers end
//   to end
// A header is 64 bytes, little endian: magic "CISTRON\n", u32 version, u32 kind (1 tokens, 2 records), u64 count (of tokens, of
// records), u64 bytes of payload, u64 XXH64 of the payload, u32 bytes of a token (0 in records.bin), zeros.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistron/data/tokenizer.h"

namespace cistron::io {
class MappedFile;
class AtomicDirectory;
}  // namespace cistron::io

namespace cistron::data {

enum class Split : uint8_t { kTrain, kValid };
std::string_view name_of(Split split);

/// The records of one split, in the order in which they were added.
class StoreSplit {
 public:
  [[nodiscard]] int64_t num_records() const { return static_cast<int64_t>(token_starts_.size()) - 1; }
  [[nodiscard]] int64_t num_tokens() const { return static_cast<int64_t>(token_starts_.back()); }
  /// Tokens of a record, its begin and end included.
  [[nodiscard]] int64_t length(int64_t record) const {
    return static_cast<int64_t>(token_starts_[record + 1] - token_starts_[record]);
  }
  [[nodiscard]] std::string_view id(int64_t record) const;
  /// Writes tokens [begin, begin + out.size()) of a record. Throws Error(kBadData) where the store has been changed since it was
  /// checked, so far as a token outside the vocabulary shows it.
  void copy_tokens(int64_t record, int64_t begin, std::span<int32_t> out) const;

 private:
  friend class Store;
  void open(const std::filesystem::path& directory, int64_t vocab_size, const nlohmann::json& manifest);

  std::shared_ptr<const io::MappedFile> tokens_file_, records_file_;
  std::span<const uint64_t> token_starts_;  // [N + 1]
  std::span<const uint64_t> id_starts_;     // [N + 1]
  const char* ids_ = nullptr;
  const std::byte* tokens_ = nullptr;
  int64_t token_bytes_ = 0, vocab_size_ = 0;
};

class Store {
 public:
  /// Reads every byte once to check it. Throws Error(kBadData) that names the file: not a store, another version, cut short, a
  /// flipped byte, a tokenizer unknown here.
  static Store open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] const StoreSplit& split(Split which) const { return splits_[static_cast<size_t>(which)]; }
  [[nodiscard]] const StoreSplit& train() const { return split(Split::kTrain); }
  [[nodiscard]] const StoreSplit& valid() const { return split(Split::kValid); }
  /// Differs between stores of different contents (the manifest's checksum): a checkpoint keeps it to know its data again.
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_; }

 private:
  std::filesystem::path directory_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  StoreSplit splits_[2];
  uint64_t fingerprint_ = 0;
};

/// Writes a store beside its final place and renames it there in `commit`. Without `commit` nothing stays behind.
class StoreWriter {
 public:
  /// Throws Error(kUsage) when `directory` exists, unless `force`.
  StoreWriter(std::filesystem::path directory, const Tokenizer& tokenizer, bool force = false);
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// `ids` holds the begin and end tokens.
  void add(Split split, std::string_view id, std::span<const int32_t> ids);
  /// `report_json` is kept in the manifest.
  void commit(std::string_view report_json = "{}");

 private:
  class SplitWriter;
  const Tokenizer& tokenizer_;
  std::unique_ptr<io::AtomicDirectory> directory_;
  std::unique_ptr<SplitWriter> splits_[2];
};

}  // namespace cistron::data
