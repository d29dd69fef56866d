#include "cistron/core/one_line.h"

namespace cistron {

std::string one_line(std::string_view text, size_t most) {
  std::string line(text);
  constexpr std::string_view kCut = " ... ";
  if (line.size() > most) {
    const size_t half = (most - kCut.size()) / 2;
    line.replace(half, line.size() - 2 * half, kCut);
  }
  for (size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]), next = static_cast<unsigned char>(i + 1 < line.size() ? line[i + 1] : 0);
    if (c < ' ' || c == 0x7f) line[i] = ' ';
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) line[i] = line[i + 1] = ' ';
  }
  return line;
}

}  // namespace cistron
