#pragma once
#include <span>
#include <string>
#include <string_view>

namespace cistron {

/// The candidate with the smallest edit distance (Levenshtein) to `name`, the first of equals; empty where there is none.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace cistron
