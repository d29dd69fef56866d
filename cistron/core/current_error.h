#pragma once
#include "cistron/core/error.h"

namespace cistron {

/// What is being handled, as an Error: whatever the standard library throws gets the kind and the line that it should have. For
/// `catch (...)`.
Error current_error();

}  // namespace cistron
