#include "cistron/data/tokenizer.h"

#include <algorithm>
#include <functional>

#include "cistron/core/error.h"

namespace cistron::data {
namespace {

// One token a byte, by a table.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int16_t kRefused = -1;
  struct Table {
    std::string_view name;
    std::vector<std::string> strings;
    SpecialIds special;
    char any;  // the letter for an unknown residue
    std::array<int16_t, 256> id_of;
  };
  explicit ByteTokenizer(Table table) : table_(std::move(table)) {}

  std::string_view name() const override { return table_.name; }
  SpecialIds special() const override { return table_.special; }
  const std::vector<std::string>& token_strings() const override { return table_.strings; }

  int64_t encode(std::string_view residues, OnUnknown on_unknown, std::vector<int32_t>& ids,
                 ReplacedCounts& replaced) const override {
    const size_t start = ids.size();
    ids.resize(start + residues.size());
    int32_t* out = ids.data() + start;
    const int32_t unknown = table_.special.unknown;
    bool plain = true;
    for (size_t i = 0; i < residues.size(); ++i) {
      out[i] = table_.id_of[static_cast<unsigned char>(residues[i])];
      plain &= out[i] != kRefused && out[i] != unknown;
    }
    return plain ? -1 : replace(residues, on_unknown, ids, start, replaced);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string residues;
    for (const int32_t id : ids) {
      CISTRON_CHECK(id >= 0 && id < vocab_size(), "token {} is not in the vocabulary of {}", id, table_.name);
      const std::string& text = table_.strings[static_cast<size_t>(id)];
      if (id == table_.special.unknown)
        residues += table_.any;
      else if (text.size() == 1)
        residues += text;
    }
    return residues;
  }

 private:
  int64_t replace(std::string_view residues, OnUnknown on_unknown, std::vector<int32_t>& ids, size_t start,
                  ReplacedCounts& replaced) const {
    const auto refused = std::find(ids.begin() + static_cast<ptrdiff_t>(start), ids.end(), int32_t{kRefused}) - ids.begin();
    if (on_unknown == OnUnknown::kError && refused < std::ssize(ids)) {
      ids.resize(start);
      return refused - static_cast<int64_t>(start);
    }
    for (size_t i = start; i < ids.size(); ++i) {
      if (ids[i] != kRefused && ids[i] != table_.special.unknown) continue;
      ids[i] = table_.special.unknown;
      ++replaced[static_cast<unsigned char>(residues[i - start])];
    }
    return -1;
  }

  Table table_;
};

ByteTokenizer::Table esm2_table() {
  constexpr std::string_view kResidues = "LAGVSERTIDPKQNFYMHWCXBUZO.-";  // ids 4 to 30
  ByteTokenizer::Table table{
      "esm2", {"<cls>", "<pad>", "<eos>", "<unk>"}, {.begin = 0, .end = 2, .pad = 1, .unknown = 3, .mask = 32}, 'X', {}};
  table.id_of.fill(ByteTokenizer::kRefused);
  for (const char c : kResidues) {
    const auto id = static_cast<int16_t>(table.strings.size());
    table.id_of[static_cast<unsigned char>(c)] = id;
    if (c >= 'A' && c <= 'Z') table.id_of[static_cast<unsigned char>(c + ('a' - 'A'))] = id;
    table.strings.emplace_back(1, c);
  }
  for (const char c : {'J', 'j', '*'}) table.id_of[static_cast<unsigned char>(c)] = 3;
  table.strings.insert(table.strings.end(), {"<null_1>", "<mask>"});
  return table;
}

ByteTokenizer::Table nucleotide_table() {
  ByteTokenizer::Table table{
      "nucleotide", {"<EOS>", "<PAD>", "<BOS>", "<UNK>"}, {.begin = 2, .end = 0, .pad = 1, .unknown = 3}, 'N', {}};
  table.id_of.fill(ByteTokenizer::kRefused);
  for (int id = 4; id < 128; ++id) {
    table.strings.emplace_back(1, static_cast<char>(id));
    if (id > ' ' && id <= '~')
      table.id_of[static_cast<size_t>(id)] = static_cast<int16_t>(id);  // no control characters or blanks
  }
  return table;
}

constexpr std::pair<std::string_view, ByteTokenizer::Table (*)()> kTokenizers[] = {{"esm2", esm2_table},
                                                                                   {"nucleotide", nucleotide_table}};

}  // namespace

std::vector<std::string_view> tokenizer_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, table] : kTokenizers) names.push_back(name);
  return names;
}

std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name) {
  for (const auto& [known, table] : kTokenizers)
    if (known == name) return std::make_unique<ByteTokenizer>(table());
  throw Error(ErrorKind::kUsage, "unknown tokenizer", name, fmt::format("use one of {}", fmt::join(tokenizer_names(), ", ")));
}

std::string printable(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte > ' ' && byte <= '~' ? fmt::format("'{}'", character) : fmt::format("byte 0x{:02x}", byte);
}

std::vector<int32_t> encode_whole(const Tokenizer& tokenizer, std::string_view residues, std::string_view where,
                                  OnUnknown on_unknown) {
  const SpecialIds special = tokenizer.special();
  std::vector<int32_t> ids;
  if (special.begin >= 0) ids.push_back(special.begin);
  ReplacedCounts replaced{};
  const int64_t refused = tokenizer.encode(residues, on_unknown, ids, replaced);
  if (refused >= 0) {
    throw Error(ErrorKind::kBadData,
                fmt::format("{} is not known to the tokenizer {}", printable(residues[refused]), tokenizer.name()),
                fmt::format("{}, column {}", where, refused + 1), "correct it");
  }
  if (special.end >= 0) ids.push_back(special.end);
  return ids;
}

}  // namespace cistron::data
