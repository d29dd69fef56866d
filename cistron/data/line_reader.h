#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cistron/data/compressed_file.h"

namespace cistron::data {

/// The lines of a file, of any length, without their ends (LF or CRLF). The last needs no end. A line that holds a NUL ends soon
/// behind it, so that a file of them is not taken for one long line.
class LineReader {
 public:
  explicit LineReader(std::filesystem::path path);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// The first byte of the next line, its end if it is empty; nothing at the end of the file.
  std::optional<char> peek();
  /// The next line, valid until the next call; cut somewhere behind `most` bytes.
  std::optional<std::string_view> next(size_t most = SIZE_MAX);
  /// The number of the line that `next` gave last, from 1.
  [[nodiscard]] int64_t number() const { return number_; }

 private:
  bool fill();
  CompressedFile file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // what is unread in the buffer
  bool at_end_ = false;
  int64_t number_ = 0;
};

}  // namespace cistron::data
