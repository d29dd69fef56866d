#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace cistron::io {

/// Parses JSON that nobody vouches for: a key twice in one object, nesting deeper than `max_depth`, bytes that are not UTF-8, and
/// anything after the value are Error(kBadData) at `where`.
nlohmann::json parse_json(std::string_view text, std::string_view where, int max_depth = 64);

/// A whole number of 64 bits, where Error(kBadData) at `where` names whatever else stands there (1.5, 2^64, "1").
int64_t json_integer(const nlohmann::json& value, std::string_view where);

/// `text` in quotes, on one line, plain ASCII, shortened to 200 bytes: for names from such files in messages.
std::string json_quoted(std::string_view text);

}  // namespace cistron::io
