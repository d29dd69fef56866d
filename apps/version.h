#pragma once
#include <string>

namespace cistron::apps {

/// Version, backends, and what of the processor is used.
std::string version_text();

}  // namespace cistron::apps
