#pragma once
// What `cistron prepare` does: sequence files to a token store, with a report of everything that was seen.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cistron/data/tokenizer.h"

namespace cistron::data {

enum class OnDuplicate : uint8_t { kError, kRename };

struct PrepareOptions {
  std::vector<std::filesystem::path> files;
  std::string tokenizer;
  std::filesystem::path out;
  double valid_fraction = 0.05;  ///< of the distinct sequences; in [0, 1)
  OnDuplicate on_duplicate = OnDuplicate::kError;
  OnUnknown on_unknown = OnUnknown::kError;
  bool force = false;
};

struct PrepareReport {
  struct SplitCounts {
    int64_t records = 0, tokens = 0;
  };
  struct Refusal {
    std::string reason;
    std::string first;  ///< FILE:LINE of the first
    int64_t records = 0;
  };
  int64_t files = 0;
  int64_t records = 0;   ///< in the store
  int64_t residues = 0;  ///< in the store, begin and end tokens not counted
  int64_t shortest = 0, longest = 0;
  double median = 0;
  ReplacedCounts replaced{};      ///< characters that became the unknown token
  int64_t blanks = 0;             ///< spaces and tabs left out of sequences
  int64_t exact_duplicates = 0;   ///< records whose residues, case aside, an earlier record has
  int64_t renamed = 0;            ///< identifiers that were taken
  std::vector<Refusal> refusals;  ///< records that were left out, by reason
  SplitCounts train, valid;

  [[nodiscard]] double mean() const { return records == 0 ? 0 : static_cast<double>(residues) / static_cast<double>(records); }
  /// For people: a few lines.
  [[nodiscard]] std::string text() const;
  /// One object, one line.
  [[nodiscard]] std::string json() const;
};

/// Records go to `valid` when the hash of their residues, case aside, falls below the fraction, so that equal ones never land on
/// both sides. Left out and reported: records without residues. Throws, and leaves no store: Error(kUsage) on options,
/// Error(kBadData) on broken input, a refused character, an identifier that appears twice (both places are named), and nothing to
/// train on.
PrepareReport prepare(const PrepareOptions& options);

}  // namespace cistron::data
