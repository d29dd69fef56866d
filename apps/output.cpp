#include "apps/output.h"

#include <algorithm>
#include <filesystem>

#include "cistron/core/error.h"

namespace cistron::apps {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(std::string_view what, const std::string& path, std::string_view advice) {
  throw Error(ErrorKind::kUsage, what, path, advice);
}

// Whether `outer` is `inner` or one of the folders above it.
bool holds(const fs::path& outer, const fs::path& inner) {
  std::error_code ignored;
  const fs::path a = fs::weakly_canonical(outer, ignored), b = fs::weakly_canonical(inner, ignored);
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first == a.end();
}

}  // namespace

bool check_output(const Output& output, const Common& common) {
  const std::string& path = output.path;
  if (path.empty()) refuse("the output has no name", "--out ''", "give a directory; is a shell variable unset?");
  for (const std::string& input : output.inputs)
    if (holds(path, input)) refuse("the output is an input, or holds one", path, "give another --out");
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return false;
  const bool is_directory = fs::is_directory(status);
  if (is_directory && fs::is_empty(path, error)) return true;
  if (!common.force) refuse("the output exists already", path, "give --force to replace it, or another --out");
  const bool ours =
      is_directory && std::ranges::all_of(output.marks, [&](const auto& mark) { return fs::exists(fs::path(path) / mark); });
  if (!ours)
    refuse("--force replaces only what this verb wrote, and this is something else", path,
           "remove it yourself, or give another --out");
  return true;
}

}  // namespace cistron::apps
