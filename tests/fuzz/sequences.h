#pragma once
// What both targets of sequence files do with one: read all records, and encode them.
#include "cistron/data/fasta.h"
#include "tests/fuzz/support.h"

namespace cistron::fuzz {

struct Records {
  bool whole = false;
  std::string text;  ///< identifiers, lines, residues
};

inline Records read_records(const std::filesystem::path& path) {
  static const auto esm2 = data::make_tokenizer("esm2"), nucleotide = data::make_tokenizer("nucleotide");
  Records records;
  records.whole = accepts(ErrorKind::kBadData, [&] {
    data::SequenceReader reader(path);
    data::SequenceRecord record;
    while (reader.next(record)) {
      records.text += fmt::format("{}:{} {} {}\n", record.line, record.id, record.residues, record.blanks);
      for (const auto* tokenizer : {esm2.get(), nucleotide.get()}) {
        std::vector<int32_t> ids;
        data::ReplacedCounts replaced{};
        accepts(ErrorKind::kBadData,
                [&] { data::encode_record(*tokenizer, reader, record, data::OnUnknown::kError, ids, replaced); });
        if (!accepts(ErrorKind::kBadData,
                     [&] { data::encode_record(*tokenizer, reader, record, data::OnUnknown::kReplace, ids, replaced); }))
          continue;
        CISTRON_CHECK(ids.size() >= record.residues.size(), "{} tokens of {} residues", ids.size(), record.residues.size());
        for (const int32_t id : ids) CISTRON_CHECK(id >= 0 && id < tokenizer->vocab_size(), "token {}", id);
      }
      for (const char c : record.residues) CISTRON_CHECK(c > ' ' && c <= '~', "residue {}", static_cast<int>(c));
      if (!record.residues.empty()) (void)reader.place(record, std::ssize(record.residues) - 1);
    }
  });
  return records;
}

}  // namespace cistron::fuzz
