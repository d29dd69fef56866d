#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// Everybody's `value`, by rank.
std::vector<std::string> gather_texts(Communicator& communicator, std::string_view value);

/// All ranks call it with what must be equal on all: the seed, the build, a hash of the config. When a value differs, every rank
/// throws the same Error(kUsage), which says which ranks (of the world) have another `what` than most, and the values.
void check_same(Communicator& communicator, std::string_view what, std::string_view value);

}  // namespace cistron::dist
