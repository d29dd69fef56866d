#include "cistron/dist/mpi/runtime.h"

#include <thread>

#include "cistron/core/error.h"
#include "cistron/dist/patience.h"

namespace cistron::dist {
namespace {

// Ranks may share cores: soon give them away.
void pause(int round) {
  if (round < 200) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

void MpiRuntime::check(const MpiOperation& operation) const {
  if (failure_) throw Error(ErrorKind::kFailed, "this rank has failed already", operation.place(), "its error was: " + *failure_);
}

void MpiRuntime::begin(MpiOperation& operation, int context) {
  const std::lock_guard lock(mutex_);
  check(operation);
  operation.begin();
  under_way_[context].push_back(&operation);
}

void MpiRuntime::progress() {
  for (auto& [context, queue] : under_way_) {
    while (!queue.empty() && queue.front()->advance()) queue.pop_front();
  }
}

bool MpiRuntime::advance(const MpiOperation& operation, int context, bool late) {
  if (operation.done()) return true;
  check(operation);
  try {
    progress();
    if (late && !operation.done()) under_way_[context].front()->throw_late_peers();
  } catch (const Error& error) {
    failure_ = error.what();
    throw;
  }
  return operation.done();
}

void MpiRuntime::wait(const MpiOperation& operation, int context) {
  Patience patience(operation.timeout());
  for (int round = 0;; ++round) {
    {
      const bool late = patience.is_over();
      const std::lock_guard lock(mutex_);
      if (advance(operation, context, late)) return;
    }
    pause(round);
  }
}

void MpiRuntime::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = why;
}

void MpiRuntime::drop(std::unique_ptr<MpiOperation> operation) {
  const std::lock_guard lock(mutex_);
  if (operation->done()) return;
  if (!failure_) failure_ = operation->place() + " was dropped before it was complete";
  under_way_.clear();
  dropped_.push_back(std::move(operation));
}

}  // namespace cistron::dist
