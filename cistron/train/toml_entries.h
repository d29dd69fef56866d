#pragma once
// TOML text as a flat list of settings, so that nothing else of the program knows the parser.
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace cistron::train {

using TomlValue = std::variant<bool, int64_t, double, std::string, std::vector<double>>;

struct TomlEntry {
  std::string section;
  std::string key;
  TomlValue value;
  std::string where;      ///< "run.toml:12" or "--set optimizer.lr=3", for messages
  bool is_empty = false;  ///< a section, or a table "key." in one, that holds nothing
};

/// Every `key = value` of every `[section]`. Throws Error(kUsage) naming `name` and the line for what is not TOML, for keys
/// outside a section, and for values that no setting has (dates, tables, lists of other things than numbers).
std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& name);

/// One override, `section.key=value`; a value that is no TOML value is taken as a string.
TomlEntry parse_override(const std::string& text);

}  // namespace cistron::train
