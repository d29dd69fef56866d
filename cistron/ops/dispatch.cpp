#include "cistron/ops/dispatch.h"

#include "cistron/core/error.h"

namespace cistron::ops {

void throw_no_backend(const char* op, const Device& device) {
  throw Error(ErrorKind::kFailed, fmt::format("[{}] has no implementation for {}", op, to_string(device)));
}

}  // namespace cistron::ops
