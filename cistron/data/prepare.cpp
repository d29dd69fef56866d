#include "cistron/data/prepare.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "cistron/core/error.h"
#include "cistron/data/fasta.h"
#include "cistron/data/identifiers.h"
#include "cistron/data/store.h"
#include "cistron/io/checksum.h"

namespace cistron::data {
namespace {

void check(const PrepareOptions& options) {
  if (options.files.empty())
    throw Error(ErrorKind::kUsage, "no input", "cistron prepare", "name one or more FASTA or FASTQ files");
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1))
    throw Error(ErrorKind::kUsage, fmt::format("a fraction of {}", options.valid_fraction), "--valid-fraction",
                "give a number from 0 to less than 1");
}

// Where each identifier was seen first.
class Identifiers {
 public:
  explicit Identifiers(OnDuplicate on_duplicate) : on_duplicate_(on_duplicate) {}

  void open(const std::filesystem::path& file) { files_.push_back(file.string()); }

  // The identifier to use: `id`, or one that is free.
  std::string claim(const std::string& id, int64_t line) {
    if (is_new(id, line)) return id;
    if (on_duplicate_ == OnDuplicate::kError)
      throw Error(ErrorKind::kBadData, fmt::format("the identifier {} appears twice", id.substr(0, 100)),
                  fmt::format("{} and {}:{}", place_of(id), files_.back(), line), "rename one, or take --on-duplicate rename");
    ++renamed_;
    int64_t& next = next_suffix_.try_emplace(id, 2).first->second;
    for (;; ++next) {
      std::string name = fmt::format("{}_{}", id, next);
      if (is_new(name, line)) return name;
    }
  }

  [[nodiscard]] int64_t renamed() const { return renamed_; }

 private:
  struct Place {
    size_t file;
    int64_t line;
  };
  bool is_new(const std::string& id, int64_t line) {
    const bool is_new = seen_.insert(id).second;
    if (is_new) places_.push_back({files_.size() - 1, line});
    return is_new;
  }
  std::string place_of(const std::string& id) {
    const Place& place = places_[seen_.insert(id).first];
    return fmt::format("{}:{}", files_[place.file], place.line);
  }

  OnDuplicate on_duplicate_;
  std::vector<std::string> files_;
  IdentifierTable seen_;
  std::vector<Place> places_;
  std::unordered_map<std::string, int64_t> next_suffix_;
  int64_t renamed_ = 0;
};

// Does not see case: soft-masking makes no other sequence.
uint64_t hash_of(std::string_view residues) {
  io::Xxh64 hash;
  std::array<char, 16384> upper;
  for (; !residues.empty(); residues.remove_prefix(std::min(upper.size(), residues.size()))) {
    const auto piece = residues.substr(0, upper.size());
    std::ranges::transform(piece, upper.begin(),
                           [](char c) { return static_cast<char>(c >= 'a' && c <= 'z' ? c - ('a' - 'A') : c); });
    hash.update(std::as_bytes(std::span(upper).first(piece.size())));
  }
  return hash.digest();
}

// `fraction` of all hashes, the same ones for every order and number of records.
Split split_of(uint64_t hash, double fraction) {
  return static_cast<double>(hash >> 11) * 0x1p-53 < fraction ? Split::kValid : Split::kTrain;
}

class Preparation {
 public:
  explicit Preparation(const PrepareOptions& options)
      : options_(options),
        tokenizer_(make_tokenizer(options.tokenizer)),
        writer_(options.out, *tokenizer_, options.force),
        identifiers_(options.on_duplicate) {}

  void add_file(const std::filesystem::path& path) {
    SequenceReader reader(path);
    identifiers_.open(path);
    ++report_.files;
    while (reader.next(record_)) add(reader);
  }

  PrepareReport finish() {
    if (report_.train.records == 0)
      throw Error(ErrorKind::kBadData, "no records to train on", options_.files.front().string(),
                  report_.records == 0 ? "every record is empty" : "lower --valid-fraction, or give more sequences");
    summarise_lengths();
    count_copies();
    report_.renamed = identifiers_.renamed();
    writer_.commit(report_.json());
    return std::move(report_);
  }

 private:
  void add(const SequenceReader& reader) {
    const std::string id = identifiers_.claim(record_.id, record_.line);
    if (record_.residues.empty()) return refuse("no residues", reader.place(record_));
    encode_record(*tokenizer_, reader, record_, options_.on_unknown, ids_, report_.replaced);
    const uint64_t hash = hash_of(record_.residues);
    const Split split = split_of(hash, options_.valid_fraction);
    writer_.add(split, id, ids_);
    count(split, hash);
  }

  void count(Split split, uint64_t hash) {
    auto& counts = split == Split::kTrain ? report_.train : report_.valid;
    ++counts.records;
    counts.tokens += std::ssize(ids_);
    ++report_.records;
    report_.residues += std::ssize(record_.residues);
    report_.blanks += record_.blanks;
    hashes_.push_back(hash);
    lengths_.push_back(std::ssize(record_.residues));
  }

  void refuse(const std::string& reason, const std::string& place) {
    auto known = std::ranges::find(report_.refusals, reason, &PrepareReport::Refusal::reason);
    if (known == report_.refusals.end()) known = report_.refusals.insert(known, {reason, place, 0});
    ++known->records;
  }

  void summarise_lengths() {
    std::ranges::sort(lengths_);
    report_.shortest = lengths_.front();
    report_.longest = lengths_.back();
    const size_t n = lengths_.size();
    report_.median = static_cast<double>(lengths_[(n - 1) / 2] + lengths_[n / 2]) / 2;
  }

  void count_copies() {
    std::ranges::sort(hashes_);
    report_.exact_duplicates = std::distance(std::unique(hashes_.begin(), hashes_.end()), hashes_.end());
  }

  const PrepareOptions& options_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  StoreWriter writer_;
  Identifiers identifiers_;
  std::vector<uint64_t> hashes_;
  std::vector<int64_t> lengths_;
  SequenceRecord record_;
  std::vector<int32_t> ids_;
  PrepareReport report_;
};

}  // namespace

PrepareReport prepare(const PrepareOptions& options) {
  check(options);
  Preparation preparation(options);
  for (const auto& file : options.files) preparation.add_file(file);
  return preparation.finish();
}

}  // namespace cistron::data
