#include "apps/interrupt.h"

#include <csignal>

namespace cistron::apps {

namespace {

// A signal handler can reach nothing but globals.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void set_handler(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {}, previous = {};
  sigaction(signal, nullptr, &previous);
  if (previous.sa_handler == SIG_IGN) return;
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

void set_handlers(void (*handler)(int)) {
  set_handler(SIGINT, handler, SA_RESETHAND);
  set_handler(SIGTERM, handler, SA_RESETHAND);
  for (const int signal : {SIGHUP, SIGUSR1, SIGXCPU}) set_handler(signal, handler, 0);
}

void receive(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  set_handlers(receive);
}

InterruptGuard::~InterruptGuard() { set_handlers(SIG_DFL); }

const std::atomic<int>& InterruptGuard::signal() const { return received; }

}  // namespace cistron::apps
