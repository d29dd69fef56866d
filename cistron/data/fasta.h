#pragma once
// FASTA and FASTQ, plain, gzip or bgzip, told apart by their contents. One record is in memory at a time.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cistron/data/line_reader.h"
#include "cistron/data/tokenizer.h"

namespace cistron::data {

struct SequenceRecord {
  std::string id;        ///< the header's first word, valid UTF-8
  std::string residues;  ///< visible ASCII only; may be empty
  int64_t line = 0;      ///< of the header, from 1
  int64_t blanks = 0;    ///< spaces and tabs inside the sequence, which are left out

  /// Residues from `residue` on stand from (line, column) on, without a break until the next run.
  struct Run {
    int64_t residue, line, column;
  };
  std::vector<Run> runs;
};

class SequenceReader {
 public:
  /// Throws Error(kBadData) when the file is empty or begins with neither '>' nor '@'.
  explicit SequenceReader(const std::filesystem::path& path);
  [[nodiscard]] const std::filesystem::path& path() const { return lines_.path(); }

  /// False at the end. Throws Error(kBadData) that names file, line and column: a header without identifier, a byte that is not
  /// visible ASCII in a sequence, a carriage return inside a line, a FASTQ record whose quality has another length.
  bool next(SequenceRecord& record);

  /// "FILE:LINE", and "FILE:LINE:COLUMN (record ID)" of a residue, for messages.
  [[nodiscard]] std::string place(const SequenceRecord& record) const;
  [[nodiscard]] std::string place(const SequenceRecord& record, int64_t residue) const;

 private:
  bool next_header(SequenceRecord& record);
  void read_sequence(SequenceRecord& record);
  void read_quality(const SequenceRecord& record);
  void append_line(std::string_view line, SequenceRecord& record) const;
  void append_checked(std::string_view line, SequenceRecord& record) const;
  void advance();
  [[noreturn]] void refuse(std::string_view what, int64_t line, int64_t column, std::string_view advice) const;

  LineReader lines_;
  std::optional<std::string_view> line_;  // one line ahead
  char marker_ = '>';
};

/// A record's tokens with begin and end into `ids` (cleared). Throws Error(kBadData) that names file, line, column and record
/// when a residue is refused.
void encode_record(const Tokenizer& tokenizer, const SequenceReader& reader, const SequenceRecord& record, OnUnknown on_unknown,
                   std::vector<int32_t>& ids, ReplacedCounts& replaced);

}  // namespace cistron::data
