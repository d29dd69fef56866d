#include "cistron/data/fasta.h"

#include <algorithm>

#include "cistron/core/error.h"
#include "cistron/core/utf8.h"

namespace cistron::data {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_visible(char c) { return c > ' ' && c <= '~'; }

// Without an early exit, so that it is vectorised.
bool all_visible(std::string_view text) {
  bool visible = true;
  for (const char c : text) visible &= is_visible(c);
  return visible;
}

// Index of the first byte that has no place in a header, or npos.
size_t find_bad_header_byte(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    const bool control = (static_cast<unsigned char>(text[i]) < ' ' && text[i] != '\t') || text[i] == '\x7f';
    if (length == 0 || control) return i;
    i += length;
  }
  return std::string_view::npos;
}

constexpr size_t kMostHeader = size_t{16} << 20;

// What to do with a file that begins so.
std::string_view advice_for(std::string_view begin) {
  if (begin.starts_with("BZh") ||
      begin.starts_with("\xfd"
                        "7zXZ") ||
      begin.starts_with("\x28\xb5\x2f\xfd"))
    return "it is packed (bzip2, xz or zstd): unpack it, or pack it with gzip or bgzip";
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff")) return "it is text in UTF-16: convert it to UTF-8";
  return "it must begin with '>' or '@'";
}

std::string_view first_word(std::string_view text) {
  const auto begin = std::find_if_not(text.begin(), text.end(), is_blank);
  return {begin, std::find_if(begin, text.end(), is_blank)};
}

}  // namespace

SequenceReader::SequenceReader(const std::filesystem::path& path) : lines_(path) {
  const auto is_empty = [&] { return line_ && std::all_of(line_->begin(), line_->end(), is_blank); };
  line_ = lines_.next(kMostHeader);
  if (line_ && line_->starts_with("\xef\xbb\xbf")) line_->remove_prefix(3);  // Windows editors' byte order mark
  while (is_empty() && line_->size() <= kMostHeader) line_ = lines_.next(kMostHeader);
  if (!line_) throw Error(ErrorKind::kBadData, "no records", lines_.path().string(), "the file is empty");
  marker_ = line_->front();
  if (marker_ != '>' && marker_ != '@')
    refuse(fmt::format("neither FASTA nor FASTQ: the first line begins with {}", printable(marker_)), lines_.number(), 1,
           advice_for(*line_));
}

void SequenceReader::advance() { line_ = lines_.next(lines_.peek() == marker_ ? kMostHeader : SIZE_MAX); }

void SequenceReader::refuse(std::string_view what, int64_t line, int64_t column, std::string_view advice) const {
  throw Error(ErrorKind::kBadData, what, fmt::format("{}:{}:{}", path().string(), line, column), advice);
}

std::string SequenceReader::place(const SequenceRecord& record) const {
  return fmt::format("{}:{}", path().string(), record.line);
}

std::string SequenceReader::place(const SequenceRecord& record, int64_t residue) const {
  const auto after = std::upper_bound(record.runs.begin(), record.runs.end(), residue,
                                      [](int64_t value, const SequenceRecord::Run& run) { return value < run.residue; });
  const auto& run = *std::prev(after);
  return fmt::format("{}:{}:{} (record {})", path().string(), run.line, run.column + residue - run.residue,
                     record.id.substr(0, 100));
}

bool SequenceReader::next(SequenceRecord& record) {
  if (!next_header(record)) return false;
  read_sequence(record);
  if (marker_ == '@') read_quality(record);
  return true;
}

bool SequenceReader::next_header(SequenceRecord& record) {
  while (line_ && std::all_of(line_->begin(), line_->end(), is_blank)) advance();
  if (!line_) return false;
  const std::string_view text = line_->substr(1);
  if (line_->front() != marker_)
    refuse(fmt::format("a FASTQ record must begin with '@', not {}", printable(line_->front())), lines_.number(), 1,
           "check the record before it");
  if (text.size() >= kMostHeader)
    refuse(fmt::format("a header of more than {} bytes", kMostHeader), lines_.number(), 1, "a header is one short line");
  if (const size_t bad = find_bad_header_byte(text); bad != std::string_view::npos)
    refuse(text[bad] == '\r' ? "a carriage return inside a line" : fmt::format("{} in a header", printable(text[bad])),
           lines_.number(), static_cast<int64_t>(bad) + 2,
           text[bad] == '\r' ? "convert the line ends to LF" : "headers are UTF-8 without control characters");
  record.id = first_word(text);
  record.line = lines_.number();
  if (record.id.empty()) refuse("a record without identifier", record.line, 1, fmt::format("name it after the '{}'", marker_));
  advance();
  return true;
}

void SequenceReader::read_sequence(SequenceRecord& record) {
  const char stop = marker_ == '>' ? '>' : '+';
  record.residues.clear();
  record.runs.clear();
  record.blanks = 0;
  for (; line_ && !line_->starts_with(stop); advance()) append_line(*line_, record);
}

void SequenceReader::append_line(std::string_view line, SequenceRecord& record) const {
  if (line.empty()) return;
  if (!all_visible(line)) return append_checked(line, record);
  record.runs.push_back({std::ssize(record.residues), lines_.number(), 1});
  record.residues += line;
}

void SequenceReader::append_checked(std::string_view line, SequenceRecord& record) const {
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  for (size_t i = 0; i < line.size(); ++i) {
    const auto column = static_cast<int64_t>(i) + 1;
    if (is_blank(line[i])) {
      ++record.blanks;
      continue;
    }
    if (line[i] == '\r') refuse("a carriage return inside a line", lines_.number(), column, "convert the line ends to LF");
    if (!is_visible(line[i]))
      refuse(fmt::format("{} in the sequence of record {}", printable(line[i]), record.id.substr(0, 100)), lines_.number(),
             column, "a sequence is visible ASCII");
    if (i == 0 || is_blank(line[i - 1])) record.runs.push_back({std::ssize(record.residues), lines_.number(), column});
    record.residues += line[i];
  }
}

void SequenceReader::read_quality(const SequenceRecord& record) {
  const auto fail = [&](std::string_view what) {
    refuse(fmt::format("{} in record {}", what, record.id.substr(0, 100)), record.line, 1, "the file is cut short or damaged");
  };
  if (!line_) fail("no line with '+'");
  advance();
  size_t left = record.residues.size();
  for (; left > 0 && line_; advance()) {
    if (line_->size() > left || !all_visible(*line_)) fail("the quality does not fit the sequence");
    left -= line_->size();
  }
  if (left > 0) fail("the quality is shorter than the sequence");
}

void encode_record(const Tokenizer& tokenizer, const SequenceReader& reader, const SequenceRecord& record, OnUnknown on_unknown,
                   std::vector<int32_t>& ids, ReplacedCounts& replaced) {
  ids.clear();
  const SpecialIds special = tokenizer.special();
  if (special.begin >= 0) ids.push_back(special.begin);
  const int64_t refused = tokenizer.encode(record.residues, on_unknown, ids, replaced);
  if (refused >= 0)
    throw Error(ErrorKind::kBadData,
                fmt::format("{} is not known to the tokenizer {}", printable(record.residues[static_cast<size_t>(refused)]),
                            tokenizer.name()),
                reader.place(record, refused), "correct it, or take --on-unknown replace");
  if (special.end >= 0) ids.push_back(special.end);
}

}  // namespace cistron::data
