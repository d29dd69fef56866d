#include "cistron/data/line_reader.h"

#include <cstring>

namespace cistron::data {

LineReader::LineReader(std::filesystem::path path) : file_(std::move(path)), buffer_(size_t{1} << 18) {}

// Reads on behind what is unread, moving or growing as a long line demands.
bool LineReader::fill() {
  if (at_end_) return false;
  if (begin_ > 0) std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const size_t size = file_.read(std::span(buffer_).subspan(end_));
  end_ += size;
  at_end_ = size == 0;
  return !at_end_;
}

std::optional<char> LineReader::peek() {
  if (begin_ == end_ && !fill()) return std::nullopt;
  return buffer_[begin_];
}

std::optional<std::string_view> LineReader::next(size_t most) {
  size_t searched = 0;
  const char* line_end = nullptr;
  bool has_nul = false;
  do {
    const char* from = buffer_.data() + begin_ + searched;
    searched = end_ - begin_;
    const auto size = static_cast<size_t>(buffer_.data() + end_ - from);
    line_end = static_cast<const char*>(std::memchr(from, '\n', size));
    has_nul = line_end == nullptr && size > 0 && std::memchr(from, '\0', size) != nullptr;
  } while (line_end == nullptr && !has_nul && searched <= most && fill());
  if (line_end == nullptr && begin_ == end_) return std::nullopt;

  const size_t size = line_end != nullptr ? static_cast<size_t>(line_end - buffer_.data()) - begin_ : end_ - begin_;
  std::string_view line(buffer_.data() + begin_, size);
  begin_ += size + (line_end != nullptr ? 1 : 0);
  ++number_;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace cistron::data
