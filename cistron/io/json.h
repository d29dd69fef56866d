#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace cistron::io {

/// Parses JSON that nobody vouches for: a key twice in one object, nesting deeper than `max_depth`, bytes that are not UTF-8, and
/// anything after the value are Error(kBadData) at `where`.
nlohmann::json parse_json(std::string_view text, std::string_view where, int max_depth = 64);

}  // namespace cistron::io
