#pragma once
#include <string>
#include <string_view>

namespace cistron {

/// `text` as one line that is safe to show: control characters, which a terminal would obey, become spaces (those of Unicode's
/// U+0080 to U+009F too), and what is longer than `most` bytes is cut in the middle.
std::string one_line(std::string_view text, size_t most = 2000);

}  // namespace cistron
