#include "cistron/core/error.h"

namespace cistron {

void throw_check_failed(const char* condition, const std::string& message) {
  throw Error(ErrorKind::kFailed, fmt::format("{} (expected {})", message, condition));
}

}  // namespace cistron
