#include "apps/interrupt.h"

namespace cistron::apps {

namespace {

// A signal handler can reach nothing but globals.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void receive(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    const bool ends_at_once = kSignals[i] == SIGINT || kSignals[i] == SIGTERM;  // when it comes again
    struct sigaction action = {};
    action.sa_handler = receive;
    action.sa_flags = SA_RESTART | (ends_at_once ? static_cast<int>(SA_RESETHAND) : 0);
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

const std::atomic<int>& InterruptGuard::signal() const { return received; }

}  // namespace cistron::apps
