#include "cistron/train/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cistron/core/checked.h"
#include "cistron/core/nearest.h"
#include "cistron/io/small_file.h"
#include "cistron/train/config_keys.h"
#include "cistron/train/toml_entries.h"

namespace cistron::train {

namespace {

std::string full_name(const Key& key) { return fmt::format("{}.{}", key.section, key.name); }

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& advice) {
  throw Error(ErrorKind::kUsage, what, where, advice);
}

[[noreturn]] void refuse_unknown(const TomlEntry& entry) {
  if (entry.section == "data" && entry.key == "mix") refuse("data.mix is not in this build", entry.where, "leave it out");
  std::vector<std::string> sections, names;
  for (const Key& key : config_keys()) {
    if (sections.empty() || sections.back() != key.section) sections.emplace_back(key.section);
    if (key.section == entry.section) names.emplace_back(key.name);
  }
  if (names.empty())
    refuse(fmt::format("unknown section [{}]", entry.section), entry.where,
           fmt::format("did you mean [{}]? The sections are {}", nearest(entry.section, sections), fmt::join(sections, ", ")));
  refuse(fmt::format("unknown key '{}' in [{}]", entry.key, entry.section), entry.where,
         fmt::format("did you mean '{}'? The keys are {}", nearest(entry.key, names), fmt::join(names, ", ")));
}

// Its name, at least, must be one.
void check_empty(const TomlEntry& entry) {
  for (const Key& key : config_keys())
    if (key.section == entry.section && key.name.starts_with(entry.key)) return;
  TomlEntry named = entry;
  if (named.key.ends_with('.')) named.key.pop_back();
  refuse_unknown(named);
}

const Key& find_key(const TomlEntry& entry) {
  for (const Key& key : config_keys())
    if (key.section == entry.section && key.name == entry.key) return key;
  refuse_unknown(entry);
}

[[noreturn]] void refuse_type(const Key& key, const TomlEntry& entry, std::string_view wanted) {
  refuse(fmt::format("{} must be {}", full_name(key), wanted), entry.where, std::string(key.doc));
}

void check_range(const Key& key, const TomlEntry& entry, double value) {
  if (value >= key.least && value <= key.most) return;
  const std::string what =
      fmt::format("{} = {} is {}", full_name(key), value, key.least == key.most ? "not in this build" : "out of range");
  if (key.least == key.most) refuse(what, entry.where, std::string(key.doc));
  refuse(what, entry.where, fmt::format("give a number from {} to {}", key.least, key.most));
}

/// "2M" for 2,000,000.
int64_t parse_count(const Key& key, const TomlEntry& entry, const std::string& text) {
  size_t used = 0;
  double value = std::nan("");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);  // no blanks, no hexadecimals
  if (error == std::errc()) used = static_cast<size_t>(end - text.data());
  const bool two_exponents = used < text.size() && text.substr(0, used).find_first_of("eE") != std::string::npos;
  const std::string suffix = used > 0 && !two_exponents ? text.substr(used) : "?";
  if (suffix == "k" || suffix == "K")
    value *= 1e3;
  else if (suffix == "M")
    value *= 1e6;
  else if (suffix == "G" || suffix == "B")
    value *= 1e9;
  else if (!suffix.empty())
    value = std::nan("");
  // 4.1 x 1e6 is 4099999.9999999995 in binary: what is whole up to such rounding is meant to be whole.
  const double whole = std::round(value);
  if (!(std::abs(value) < 9e18) || std::abs(value - whole) > 1e-9 * std::abs(whole))
    refuse_type(key, entry, "a whole number, as 2000000 or \"2M\"");
  return static_cast<int64_t>(whole);
}

void assign(const Key& key, const TomlEntry& entry, bool& out) {
  const auto* value = std::get_if<bool>(&entry.value);
  if (value == nullptr) refuse_type(key, entry, "true or false");
  check_range(key, entry, *value ? 1 : 0);
  out = *value;
}

void assign(const Key& key, const TomlEntry& entry, int64_t& out) {
  const bool count = key.name.ends_with("tokens");
  if (const auto* value = std::get_if<int64_t>(&entry.value))
    out = *value;
  else if (const auto* text = std::get_if<std::string>(&entry.value); text != nullptr && count)
    out = parse_count(key, entry, *text);
  else if (const auto* real = std::get_if<double>(&entry.value); real != nullptr && count)
    out = parse_count(key, entry, fmt::format("{}", *real));
  else
    refuse_type(key, entry, "a whole number");
  check_range(key, entry, static_cast<double>(out));
}

void assign(const Key& key, const TomlEntry& entry, double& out) {
  if (const auto* value = std::get_if<double>(&entry.value))
    out = *value;
  else if (const auto* whole = std::get_if<int64_t>(&entry.value))
    out = static_cast<double>(*whole);
  else
    refuse_type(key, entry, "a number");
  check_range(key, entry, out);
}

void assign(const Key& key, const TomlEntry& entry, std::vector<double>& out) {
  const auto* value = std::get_if<std::vector<double>>(&entry.value);
  if (value == nullptr || value->size() != out.size()) refuse_type(key, entry, fmt::format("a list of {} numbers", out.size()));
  for (const double number : *value) check_range(key, entry, number);
  out = *value;
}

void assign(const Key& key, const TomlEntry& entry, std::string& out) {
  const auto* value = std::get_if<std::string>(&entry.value);
  if (value == nullptr) refuse_type(key, entry, "a string between quotes");
  if (std::ranges::find(key.later, *value) != key.later.end())
    refuse(fmt::format("{} = '{}' is not in this build", full_name(key), *value), entry.where,
           fmt::format("give one of {}", fmt::join(key.choices, ", ")));
  if (!key.choices.empty() && std::ranges::find(key.choices, *value) == key.choices.end())
    refuse(fmt::format("{} cannot be '{}'", full_name(key), *value), entry.where,
           fmt::format("did you mean '{}'? It may be {}", nearest(*value, key.choices), fmt::join(key.choices, ", ")));
  out = *value;
}

void assign_entry(RunConfig& config, const TomlEntry& entry) {
  const Key& key = find_key(entry);
  std::visit([&](auto* member) { assign(key, entry, *member); }, key.slot(config));
}

void apply_preset(RunConfig& config, const TomlEntry& entry) {
  assign_entry(config, entry);
  if (config.preset.empty()) return;
  try {
    config.model = model::preset(config.preset);
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, fmt::format("model.preset: {}: {}", entry.where, error.what()));
  }
  config.model.head_dim = 0;  // follows hidden and heads, which may yet change
}

std::string text_of(Slot slot) {
  struct Writer {
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const int64_t* v) const { return std::to_string(*v); }
    std::string operator()(const double* v) const {
      const std::string text = fmt::format("{}", *v);  // the shortest that reads back to the same number
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string* v) const {
      std::string quoted = "\"";
      for (const char c : *v) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
          quoted += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
        else
          quoted += c;
      }
      return quoted + '"';
    }
    std::string operator()(const std::vector<double>* v) const {
      std::vector<std::string> items;
      for (const double& item : *v) items.push_back((*this)(&item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
  };
  return std::visit(Writer{}, slot);
}

}  // namespace

RunConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  std::vector<TomlEntry> entries = parse_toml(text, name);
  for (const auto& item : overrides) entries.push_back(parse_override(item));
  RunConfig config;
  const auto is_preset = [](const TomlEntry& e) { return !e.is_empty && e.section == "model" && e.key == "preset"; };
  const auto last = std::find_if(entries.rbegin(), entries.rend(), is_preset);
  if (last != entries.rend()) apply_preset(config, *last);
  for (const auto& entry : entries)
    if (entry.is_empty)
      check_empty(entry);
    else if (!is_preset(entry))
      assign_entry(config, entry);
  return config;
}

RunConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  std::string text;
  try {
    text = io::read_small_file(file);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadData) throw;
    refuse("cannot read the configuration", file.string(), "give a TOML file, such as configs/tiny-protein.toml");
  }
  return parse_config(text, file.string(), overrides);
}

std::string to_toml(const RunConfig& config) {
  RunConfig copy = config;
  std::string text, section;
  for (const Key& key : config_keys()) {
    if (key.section != section) text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section);
    section = key.section;
    const std::string setting = fmt::format("{} = {}", key.name, text_of(key.slot(copy)));
    text += fmt::format("{:<32}# {}\n", setting, key.doc);
  }
  return text;
}

std::vector<std::string> differences(const RunConfig& then, const RunConfig& now) {
  RunConfig a = then, b = now;
  std::vector<std::string> all;
  for (const Key& key : config_keys()) {
    const std::string was = text_of(key.slot(a)), is = text_of(key.slot(b));
    if (was != is) all.push_back(fmt::format("{}: {} -> {}", full_name(key), was, is));
  }
  return all;
}

}  // namespace cistron::train
