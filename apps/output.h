#pragma once
// Where a verb writes, and what it must never destroy.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "apps/command.h"

namespace cistron::apps {

struct Output {
  std::string path;
  std::vector<std::string> inputs;  ///< what the verb reads: the output may not be one of them, hold one, or lie in one
  std::function<bool(const std::filesystem::path&)> is_ours;  ///< an earlier output of this verb, and nothing else beside it
};

/// Whether `path` is to be replaced: --force was given and it is this verb's own earlier output, or it is an empty directory.
/// Throws Error(kUsage) for an empty path, an existing output without --force, an input, a place inside a checkpoint, and
/// anything that this verb did not write.
bool check_output(const Output& output, const Common& common);

// The outputs, each known by its contents.
bool is_store(const std::filesystem::path& path);
/// Of `cistron import`: not one of a run's.
bool is_imported(const std::filesystem::path& path);
bool is_exported(const std::filesystem::path& path);

}  // namespace cistron::apps
