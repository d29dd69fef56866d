#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cistron/core/one_line.h"
#include "cistron/data/prepare.h"

namespace cistron::data {
namespace {

// 1234567 as 1,234,567.
std::string grouped(int64_t number) {
  std::string text;
  const std::string digits = fmt::format("{}", number);
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace

std::string PrepareReport::text() const {
  std::string text =
      fmt::format("{} records, {} residues from {} file{}\n", grouped(records), grouped(residues), files, files == 1 ? "" : "s");
  text += fmt::format("  lengths         {} to {}, mean {:.1f}, median {:.1f}\n", grouped(shortest), grouped(longest), mean(),
                      median);
  text += fmt::format("  train           {} records, {} tokens\n", grouped(train.records), grouped(train.tokens));
  text += fmt::format("  valid           {} records, {} tokens\n", grouped(valid.records), grouped(valid.tokens));
  text += fmt::format("  exact copies    {}\n", grouped(exact_duplicates));
  for (size_t byte = 0; byte < replaced.size(); ++byte)
    if (replaced[byte] > 0)
      text += fmt::format("  made unknown    {} of {}\n", grouped(replaced[byte]), printable(static_cast<char>(byte)));
  if (blanks > 0) text += fmt::format("  blanks dropped  {}\n", grouped(blanks));
  if (renamed > 0) text += fmt::format("  renamed         {}\n", grouped(renamed));
  for (const Refusal& refusal : refusals)
    text += fmt::format("  left out        {} with {}, the first at {}\n", grouped(refusal.records), refusal.reason,
                        one_line(refusal.first));
  return text;
}

std::string PrepareReport::json() const {
  nlohmann::json characters = nlohmann::json::object(), left_out = nlohmann::json::array();
  for (size_t byte = 0; byte < replaced.size(); ++byte)
    if (replaced[byte] > 0) characters[std::string(1, static_cast<char>(byte))] = replaced[byte];
  for (const Refusal& refusal : refusals)
    left_out.push_back({{"reason", refusal.reason}, {"records", refusal.records}, {"first", refusal.first}});
  const auto counts = [](const SplitCounts& split) {
    return nlohmann::json{{"records", split.records}, {"tokens", split.tokens}};
  };
  const nlohmann::json report = {{"files", files},
                                 {"records", records},
                                 {"residues", residues},
                                 {"length", {{"shortest", shortest}, {"longest", longest}, {"mean", mean()}, {"median", median}}},
                                 {"train", counts(train)},
                                 {"valid", counts(valid)},
                                 {"exact_duplicates", exact_duplicates},
                                 {"replaced", characters},
                                 {"blanks_dropped", blanks},
                                 {"renamed", renamed},
                                 {"left_out", left_out}};
  return report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);  // a path need not be UTF-8
}

}  // namespace cistron::data
