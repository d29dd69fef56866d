#include "cistron/core/start_thread.h"

#include <system_error>
#include <utility>

#include "cistron/core/error.h"

namespace cistron {

std::thread start_thread(std::function<void()> run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    throw Error(
        ErrorKind::kFailed, "cannot start a thread", error.code().message(),
        "raise the limit on processes or memory (ulimit -u, ulimit -v, a container's pids), or use fewer --ranks and --threads");
  }
}

}  // namespace cistron
