#include "cistron/train/toml_entries.h"

#define TOML_HEADER_ONLY 1
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts on some input that it should refuse
#include <toml++/toml.h>

#include <new>
#include <sstream>

#include "cistron/core/error.h"
#include "cistron/core/utf8.h"

namespace cistron::train {

namespace {

[[noreturn]] void refuse(std::string_view what, const std::string& where, std::string_view advice) {
  throw Error(ErrorKind::kUsage, what, where, advice);
}

// Skips a string that starts at `i` with `quote`, of one line or triple; gives the position behind it, or the end.
size_t skip_string(std::string_view text, size_t i, int& line) {
  const char quote = text[i];
  const bool triple = text.substr(i, 3) == std::string(3, quote);
  const std::string_view end = text.substr(i, triple ? 3 : 1);
  for (i += end.size(); i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      if (!triple) return i;
    }
    if (quote == '"' && text[i] == '\\')
      ++i;
    else if (text.substr(i, end.size()) == end)
      return i + end.size();
  }
  return text.size();
}

// The parser can abort on characters outside of ASCII, and calls itself for each part of a dotted key (toml++ 3.3).
void refuse_what_breaks_the_parser(std::string_view text, const std::string& name) {
  constexpr int kMostParts = 16;
  int line = 1, parts = 1;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    parts = c == '.' ? parts + 1 : std::string_view("=,[]{}\n").find(c) != std::string_view::npos ? 1 : parts;
    if (parts > kMostParts)
      refuse(fmt::format("a key of more than {} parts", kMostParts), fmt::format("{}:{}", name, line), "keys have one or two");
    if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      i = skip_string(text, i, line);
    } else {
      if (c == '\0' || static_cast<unsigned char>(c) >= 0x80)
        refuse("a character that is not plain ASCII", fmt::format("{}:{}", name, line), "put it between quotes or after #");
      line += c == '\n' ? 1 : 0;
      ++i;
    }
  }
}

TomlValue list_of(const toml::array& array, const std::string& where) {
  std::vector<double> values;
  for (const auto& item : array) {
    const auto number = item.value<double>();
    if (!number) refuse("a list of something else than numbers", where, "give numbers");
    values.push_back(*number);
  }
  return values;
}

TomlValue value_of(const toml::node& node, const std::string& where) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_array()) return list_of(*v, where);
  refuse("a value of a kind that no setting has", where, "give a number, a string, true or false");
}

bool streams_read_numbers() {
  std::istringstream stream("0.5");
  double value = 0.0;
  return static_cast<bool>(stream >> value);
}

// toml++ reads numbers through streams, to which memory that is not there is a wrong number: what it refuses it reads once more.
toml::table parse(std::string_view text, const std::string& name) {
  for (bool again = false;; again = true) {
    try {
      return toml::parse(text, name);
    } catch (const toml::parse_error& error) {
      if (!streams_read_numbers()) throw std::bad_alloc();
      if (!again) continue;
      refuse(fmt::format("not valid TOML ({})", error.description()), fmt::format("{}:{}", name, error.source().begin.line),
             "mend that line");
    }
  }
}

std::string strip(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

}  // namespace

std::vector<TomlEntry> parse_toml(std::string_view text, const std::string& name) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // Windows editors' byte order mark
  refuse_what_breaks_the_parser(text, name);
  std::vector<TomlEntry> entries;
  const auto line = [&](const toml::node& node) { return fmt::format("{}:{}", name, node.source().begin.line); };
  for (const auto& [section, node] : parse(text, name)) {
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      if (node.is_array_of_tables())
        refuse(fmt::format("a list of sections [[{}]]", section.str()), line(node), "write [section] once");
      refuse(fmt::format("key '{}' stands outside a section", section.str()), line(node), "put it under a [section]");
    }
    if (table->empty()) entries.push_back({std::string(section.str()), "", true, line(node), true});
    for (const auto& [key, value] : *table) {
      // `mxfp8.group = 32` is a table in a section; its keys keep their dots.
      if (const auto* inner = value.as_table()) {
        if (inner->empty())
          entries.push_back({std::string(section.str()), fmt::format("{}.", key.str()), true, line(value), true});
        for (const auto& [last, leaf] : *inner)
          entries.push_back(
              {std::string(section.str()), fmt::format("{}.{}", key.str(), last.str()), value_of(leaf, line(leaf)), line(leaf)});
      } else if (value.is_array_of_tables()) {
        entries.push_back({std::string(section.str()), std::string(key.str()), TomlValue{std::vector<double>{}}, line(value)});
      } else {
        entries.push_back({std::string(section.str()), std::string(key.str()), value_of(value, line(value)), line(value)});
      }
    }
  }
  return entries;
}

TomlEntry parse_override(const std::string& text) {
  const std::string where = "--set " + text;
  const auto equals = text.find('='), dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals)
    refuse("not an override", where, "write --set section.key=value");
  if (const size_t bad = find_not_utf8(text); bad != std::string::npos)
    refuse(fmt::format("byte 0x{:02x} is not UTF-8", static_cast<unsigned char>(text[bad])), "--set " + text.substr(0, equals),
           "a configuration is UTF-8: rename the file");
  const std::string value = strip(text.substr(equals + 1));
  TomlEntry entry{.section = strip(text.substr(0, dot)),
                  .key = strip(text.substr(dot + 1, equals - dot - 1)),
                  .value = value,
                  .where = where};
  try {
    const auto parsed = parse_toml("[s]\nv = " + value, where);
    if (parsed.size() == 1 && parsed[0].key == "v") entry.value = parsed[0].value;
  } catch (const Error&) {  // a bare word
  }
  return entry;
}

}  // namespace cistron::train
