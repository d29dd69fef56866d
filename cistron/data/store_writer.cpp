#include <nlohmann/json.hpp>

#include "cistron/core/checked.h"
#include "cistron/data/store.h"
#include "cistron/data/store_format.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/checksum.h"

namespace cistron::data {
namespace {

// A file whose header, with the checksum of all that follows it, is written last.
class PayloadFile {
 public:
  PayloadFile(std::filesystem::path path, StoreFileKind kind, uint32_t token_bytes) : file_(std::move(path)) {
    header_.kind = kind;
    header_.token_bytes = token_bytes;
    flush_header();
    buffer_.reserve(kBuffer);
  }

  template <class T>
  void append(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() > kBuffer) return put(bytes);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }

  nlohmann::json finish(uint64_t count) {
    flush();
    header_.count = count;
    header_.checksum = hash_.digest();
    file_.write_at(0, std::as_bytes(std::span(&header_, 1)));
    file_.close();
    return {{"count", count}, {"bytes", header_.payload_bytes}, {"checksum", header_.checksum}};
  }

 private:
  static constexpr size_t kBuffer = size_t{1} << 20;
  void flush_header() { file_.write(std::as_bytes(std::span(&header_, 1))); }
  void flush() {
    put(buffer_);
    buffer_.clear();
  }
  void put(std::span<const std::byte> bytes) {
    hash_.update(bytes);
    file_.write(bytes);
    header_.payload_bytes += bytes.size();
  }

  io::FileWriter file_;
  StoreHeader header_;
  io::Xxh64 hash_;
  std::vector<std::byte> buffer_;
};

}  // namespace

class StoreWriter::SplitWriter {
 public:
  SplitWriter(std::filesystem::path directory, uint32_t token_bytes)
      : directory_(std::move(directory)),
        token_bytes_(token_bytes),
        tokens_((make(directory_), directory_ / "tokens.bin"), StoreFileKind::kTokens, token_bytes) {}

  void add(std::string_view id, std::span<const int32_t> tokens) {
    if (token_bytes_ == 1)
      append_as<uint8_t>(tokens);
    else
      append_as<uint16_t>(tokens);
    token_starts_.push_back(token_starts_.back() + tokens.size());
    ids_ += id;
    id_starts_.push_back(ids_.size());
  }

  nlohmann::json finish() {
    PayloadFile records(directory_ / "records.bin", StoreFileKind::kRecords, 0);
    records.append(std::span<const uint64_t>(token_starts_));
    records.append(std::span<const uint64_t>(id_starts_));
    records.append(std::span<const char>(ids_));
    return {{"records", records.finish(token_starts_.size() - 1)}, {"tokens", tokens_.finish(token_starts_.back())}};
  }

 private:
  static void make(const std::filesystem::path& directory) {
    std::error_code error;
    std::filesystem::create_directory(directory, error);
    if (error) {
      errno = error.value();
      io::throw_errno("cannot create the directory", directory);
    }
  }

  template <class T>
  void append_as(std::span<const int32_t> tokens) {
    constexpr size_t kPiece = 65536;
    for (; !tokens.empty(); tokens = tokens.subspan(std::min(kPiece, tokens.size()))) {
      const auto piece = tokens.first(std::min(kPiece, tokens.size()));
      narrow_.resize(piece.size() * sizeof(T));
      T* out = reinterpret_cast<T*>(narrow_.data());
      for (size_t i = 0; i < piece.size(); ++i) out[i] = static_cast<T>(piece[i]);
      tokens_.append(std::span<const std::byte>(narrow_));
    }
  }

  std::filesystem::path directory_;
  uint32_t token_bytes_;
  PayloadFile tokens_;
  std::vector<uint64_t> token_starts_{0}, id_starts_{0};
  std::string ids_;
  std::vector<std::byte> narrow_;
};

StoreWriter::StoreWriter(std::filesystem::path directory, const Tokenizer& tokenizer, bool force)
    : tokenizer_(tokenizer), directory_(std::make_unique<io::AtomicDirectory>(std::move(directory), force)) {
  CISTRON_CHECK(tokenizer.vocab_size() <= 65536, "a store holds tokens in 16 bits, and {} has {}", tokenizer.name(),
                tokenizer.vocab_size());
  const uint32_t token_bytes = tokenizer.vocab_size() <= 256 ? 1 : 2;
  for (const Split split : {Split::kTrain, Split::kValid})
    splits_[static_cast<size_t>(split)] = std::make_unique<SplitWriter>(directory_->partial() / name_of(split), token_bytes);
}

StoreWriter::~StoreWriter() = default;

void StoreWriter::add(Split split, std::string_view id, std::span<const int32_t> ids) {
  splits_[static_cast<size_t>(split)]->add(id, ids);
}

void StoreWriter::commit(std::string_view report_json) {
  nlohmann::json manifest = {{"format", kStoreFormat},
                             {"version", kStoreVersion},
                             {"tokenizer", tokenizer_.name()},
                             {"vocab_size", tokenizer_.vocab_size()},
                             {"report", nlohmann::json::parse(report_json)},
                             {"splits", nlohmann::json::object()}};
  for (const Split split : {Split::kTrain, Split::kValid})
    manifest["splits"][name_of(split)] = splits_[static_cast<size_t>(split)]->finish();
  manifest["checksum"] = io::xxh64(manifest.dump());
  io::FileWriter file(directory_->partial() / "manifest.json");
  file.write(manifest.dump(2) + "\n");
  file.close();
  directory_->commit();
}

}  // namespace cistron::data
