#pragma once
#include <functional>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// Runs `act` on every rank, whose effects count only where all succeed: when one throws, every rank does, the others with an
/// error of the same kind that names the rank and what it said. All ranks call it; `act` calls no collective.
void together(Communicator& communicator, const std::function<void()>& act);

}  // namespace cistron::dist
