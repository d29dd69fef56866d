#pragma once
// Words as another program takes them.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace cistron::apps {

/// One object on one line, with its line feed. Bytes that are not UTF-8, which a path may hold, become U+FFFD.
std::string json_line(const nlohmann::ordered_json& object);

/// A word that a shell reads as `text`: as it is where that is safe, otherwise between single quotes.
std::string shell_quoted(const std::string& text);

}  // namespace cistron::apps
