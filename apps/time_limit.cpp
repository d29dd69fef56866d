#include "apps/time_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string_view>

#include "cistron/core/error.h"

namespace cistron::apps {

namespace {

// Only what a handler of signals may call.
void on_limit(int) {
  constexpr std::string_view kLine = "cistron: error: the limit on the processor's time is reached: ulimit -t: raise it\n";
  (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(static_cast<int>(ErrorKind::kFailed));
}

// The system kills at the hard limit, and warns at the soft one, if that comes first.
void be_warned_before_the_end() {
  rlimit limit{};
  if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max == RLIM_INFINITY || limit.rlim_cur < limit.rlim_max) return;
  const rlim_t before = std::clamp<rlim_t>(limit.rlim_max / 10, 1, 60);
  if (limit.rlim_max <= before) return;
  limit.rlim_cur = limit.rlim_max - before;
  (void)setrlimit(RLIMIT_CPU, &limit);  // lower is always allowed
}

}  // namespace

void say_when_time_is_up() {
  be_warned_before_the_end();
  struct sigaction previous = {};
  sigaction(SIGXCPU, nullptr, &previous);
  if (previous.sa_handler == SIG_DFL) std::signal(SIGXCPU, on_limit);
}

}  // namespace cistron::apps
