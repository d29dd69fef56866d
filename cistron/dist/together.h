#pragma once
#include <functional>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// Runs `act` on every rank, whose effects count only where all succeed: when one throws, every rank does, the others with an
/// error of the same kind that names the rank and what it said. All ranks call it; `act` calls no collective.
/// Then every rank runs `undo` before any throws: a launcher ends the others as soon as one has left. `undo` throws nothing.
void together(Communicator& communicator, const std::function<void()>& act, const std::function<void()>& undo = [] {});

}  // namespace cistron::dist
