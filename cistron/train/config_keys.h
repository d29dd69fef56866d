#pragma once
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cistron/train/config.h"

namespace cistron::train {

/// Where a key's value lives. Its type is the key's type.
using Slot = std::variant<bool*, int64_t*, double*, std::string*, std::vector<double>*>;

struct Key {
  std::string_view section;
  std::string_view name;
  Slot (*slot)(RunConfig&);
  std::string_view doc;
  double least = -std::numeric_limits<double>::infinity();  ///< inclusive, for numbers
  double most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  ///< for strings: the values there are; empty: any
  std::vector<std::string> later = {};    ///< values that other builds or versions know
};

/// All keys, in the order in which they are written. Model keys come before those that override them.
std::span<const Key> config_keys();

}  // namespace cistron::train
