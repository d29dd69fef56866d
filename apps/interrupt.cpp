#include "apps/interrupt.h"

#include <csignal>

namespace cistron::apps {

namespace {

// A signal handler can reach nothing but globals.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void set_handler(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  set_handler([](int signal) { received = signal; });
}

InterruptGuard::~InterruptGuard() { set_handler(SIG_DFL); }

const std::atomic<int>& InterruptGuard::signal() const { return received; }

}  // namespace cistron::apps
