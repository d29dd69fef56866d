#pragma once
#include <cstddef>
#include <string_view>

namespace cistron {

/// Bytes of the UTF-8 character that `text` begins with; 0 when it is none (RFC 3629: no surrogates, no overlong forms).
size_t utf8_length(std::string_view text);

/// Index of the first byte that belongs to no UTF-8 character, or npos.
size_t find_not_utf8(std::string_view text);

}  // namespace cistron
