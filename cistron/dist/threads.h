#pragma once
#include <functional>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// Runs `fn` on `ranks` threads of this process, each with its communicator of the world; returns when all have ended. When one
/// throws, the others' waits throw errors that name it, and what it threw is thrown again here. A rank that has not ended a
/// timeout after another's failure cannot be stopped: the program then says which and exits with status 1.
void run_ranks(int ranks, const std::function<void(Communicator&)>& fn, const Options& options = {});

}  // namespace cistron::dist
