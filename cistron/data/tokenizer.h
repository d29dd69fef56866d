#pragma once
// Residues to token ids and back. The ids are those of the published models: `esm2` of Lin et al. (Science 2023), `nucleotide` of
// Genos (one token a byte).
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cistron::data {

/// -1: the vocabulary has none.
struct SpecialIds {
  int32_t begin = -1, end = -1, pad = -1, unknown = -1, mask = -1;
};

/// What becomes of a character that the vocabulary does not know.
enum class OnUnknown : uint8_t { kError, kReplace };

/// How often each byte became the unknown token.
using ReplacedCounts = std::array<int64_t, 256>;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual SpecialIds special() const = 0;
  /// The text of each token, by id; its size is the vocabulary's.
  [[nodiscard]] virtual const std::vector<std::string>& token_strings() const = 0;
  [[nodiscard]] int64_t vocab_size() const { return static_cast<int64_t>(token_strings().size()); }

  /// Appends the tokens of `residues` to `ids`, without begin and end. Returns -1, or the index of the first residue that is
  /// refused (then `ids` is as it was). What became the unknown token is counted in `replaced`.
  virtual int64_t encode(std::string_view residues, OnUnknown on_unknown, std::vector<int32_t>& ids,
                         ReplacedCounts& replaced) const = 0;
  /// The residues; special tokens (whose text is longer than a letter) are left out, an unknown one is the alphabet's letter for
  /// "any" (X, N). Throws on an id that is not in the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

/// The tokenizers' names, as `make_tokenizer` takes them.
std::vector<std::string_view> tokenizer_names();

/// Throws Error(kUsage) that lists the known names.
std::unique_ptr<const Tokenizer> make_tokenizer(std::string_view name);

/// A character as messages show it: 'J', byte 0x07.
std::string printable(char character);

/// `residues` with its begin and end token. Throws Error(kBadData) that names `where`, the character, and its column from 1.
std::vector<int32_t> encode_whole(const Tokenizer& tokenizer, std::string_view residues, std::string_view where,
                                  OnUnknown on_unknown = OnUnknown::kError);

}  // namespace cistron::data
