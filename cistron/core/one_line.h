#pragma once
#include <string>
#include <string_view>

namespace cistron {

/// `text` as one line that is safe to show: control characters, which a terminal would obey, become spaces (those of Unicode's
/// U+0080 to U+009F too), and what is longer than `most` bytes is cut in the middle, to that. The one limit on what is said.
std::string one_line(std::string_view text, size_t most = 1000);

}  // namespace cistron
