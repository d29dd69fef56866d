#pragma once
// Where a verb writes, and what it must never destroy.
#include <string>
#include <vector>

#include "apps/command.h"

namespace cistron::apps {

struct Output {
  std::string path;
  std::vector<std::string> inputs;  ///< what the verb reads: the output may not be one of them, or hold one
  std::vector<std::string> marks;   ///< the files by which an earlier output of this verb is known; all must be there
};

/// Whether `path` is to be replaced: --force was given and it is this verb's own earlier output, or it is an empty directory.
/// Throws Error(kUsage) for an empty path, an existing output without --force, an input, and anything that this verb did not
/// write.
bool check_output(const Output& output, const Common& common);

}  // namespace cistron::apps
