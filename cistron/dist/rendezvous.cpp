#include "cistron/dist/rendezvous.h"

#include "cistron/core/error.h"
#include "cistron/dist/patience.h"

namespace cistron::dist {
namespace {

using Lock = std::unique_lock<std::mutex>;

class ThreadWork : public Work {
 public:
  ThreadWork(Collective call, const Membership& who, std::shared_ptr<ThreadWorld> world)
      : call_(std::move(call)), who_(who), world_(std::move(world)) {}
  ~ThreadWork() override;
  ThreadWork(const ThreadWork&) = delete;
  ThreadWork& operator=(const ThreadWork&) = delete;

  void arrive(Rendezvous& rendezvous);
  void wait() override;

 private:
  void check_world(const Lock& lock);
  void check_against(int peer);
  void check_missing();
  void deliver_one(Lock& lock);
  [[nodiscard]] std::vector<int> missing() const;
  // Throws what `throw_it` throws, after it was made known.
  template <class F>
  [[noreturn]] void fail(F&& throw_it);

  Collective call_;
  Membership who_;
  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<Meeting> meeting_;
};

template <class F>
void ThreadWork::fail(F&& throw_it) {
  try {
    throw_it();
  } catch (const Error& error) {
    world_->fail_locked(who_.world_rank(), error.what());
    throw;
  }
  __builtin_unreachable();
}

// A rank that unwinds takes its buffers along: nobody may begin to read them, and who has begun must end first.
ThreadWork::~ThreadWork() {
  if (!meeting_) return;
  Lock lock(world_->mutex());
  if (meeting_->done()) return;
  world_->fail_locked(who_.world_rank(), place_of(call_.signature, who_) + " was dropped before it was complete");
  world_->changed().wait(lock, [&] { return meeting_->claimed == meeting_->delivered; });
}

void ThreadWork::check_world(const Lock& /*held*/) {
  if (const auto& failure = world_->failure()) {
    throw Error(ErrorKind::kFailed, fmt::format("rank {} has failed", failure->rank), place_of(call_.signature, who_),
                "its error was: " + failure->message);
  }
}

void ThreadWork::check_against(int peer) {
  const auto them = static_cast<size_t>(peer), me = static_cast<size_t>(who_.rank);
  const Collective& theirs = *meeting_->calls[them];
  Membership their_view = who_;
  their_view.rank = peer;
  std::string text = mismatch(call_, who_, theirs.signature, theirs.sends[me].bytes, peer);
  if (text.empty()) text = mismatch(theirs, their_view, call_.signature, call_.sends[them].bytes, who_.rank);
  if (!text.empty()) fail([&] { throw_mismatch(text, call_.signature, who_); });
}

void ThreadWork::arrive(Rendezvous& rendezvous) {
  const Lock lock(world_->mutex());
  check_world(lock);
  std::shared_ptr<Meeting>& meeting = rendezvous.meetings[call_.signature.sequence];
  if (!meeting) meeting = std::make_shared<Meeting>(Meeting{.calls = std::vector<const Collective*>(who_.members.size())});
  meeting_ = meeting;
  meeting_->calls[static_cast<size_t>(who_.rank)] = &call_;
  for (int peer = 0; peer < who_.size(); ++peer) {
    if (meeting_->calls[static_cast<size_t>(peer)]) check_against(peer);
  }
  ++meeting_->arrived;
  if (!meeting_->all_arrived()) return;
  rendezvous.meetings.erase(call_.signature.sequence);
  world_->changed().notify_all();
}

std::vector<int> ThreadWork::missing() const {
  std::vector<int> result;
  for (size_t r = 0; r < meeting_->calls.size(); ++r) {
    if (!meeting_->calls[r]) result.push_back(who_.members[r]);
  }
  return result;
}

void ThreadWork::check_missing() {
  for (const int rank : missing()) {
    if (!world_->has_ended(rank)) continue;
    fail([&] {
      throw Error(ErrorKind::kFailed, fmt::format("rank {} has ended", rank), place_of(call_.signature, who_),
                  "every rank must call the same collectives; report it with the config");
    });
  }
}

void ThreadWork::deliver_one(Lock& lock) {
  const int rank = meeting_->claimed++;
  lock.unlock();
  deliver(meeting_->calls, rank);
  lock.lock();
  ++meeting_->delivered;
  world_->changed().notify_all();
}

void ThreadWork::wait() {
  Patience patience(who_.timeout);
  Lock lock(world_->mutex());
  while (!meeting_->done()) {
    check_world(lock);
    if (meeting_->all_arrived() && meeting_->claimed < who_.size()) {
      deliver_one(lock);
      continue;
    }
    if (meeting_->all_arrived()) {  // others deliver, which ends soon
      world_->changed().wait(lock);
      continue;
    }
    check_missing();
    world_->changed().wait_for(lock, patience.slice());
    if (patience.is_over() && !meeting_->all_arrived() && !world_->failure()) {
      fail([&] { throw_late(missing(), "arrived", call_.signature, who_); });
    }
  }
}

}  // namespace

void ThreadWorld::fail_locked(int rank, const std::string& message) {
  if (!failure_) failure_ = Failure{rank, message};
  changed_.notify_all();
}

void ThreadWorld::fail(int rank, const std::string& message) {
  const std::lock_guard lock(mutex_);
  fail_locked(rank, message);
}

void ThreadWorld::end(int rank) {
  const std::lock_guard lock(mutex_);
  ended_[static_cast<size_t>(rank)] = true;
  changed_.notify_all();
}

std::vector<int> ThreadWorld::running() const {
  std::vector<int> result;
  for (size_t r = 0; r < ended_.size(); ++r) {
    if (!ended_[r]) result.push_back(static_cast<int>(r));
  }
  return result;
}

std::unique_ptr<Work> ThreadCommunicator::start(Collective call) {
  auto work = std::make_unique<ThreadWork>(std::move(call), membership(), rendezvous_->world);
  work->arrive(*rendezvous_);
  return work;
}

std::unique_ptr<Communicator> ThreadCommunicator::make_part(Membership part) {
  const std::lock_guard lock(rendezvous_->world->mutex());
  std::weak_ptr<Rendezvous>& known = rendezvous_->parts[{++splits_, part.members[0]}];
  std::shared_ptr<Rendezvous> shared = known.lock();
  if (!shared) known = shared = std::make_shared<Rendezvous>(Rendezvous{.world = rendezvous_->world});
  return std::make_unique<ThreadCommunicator>(std::move(part), std::move(shared));
}

}  // namespace cistron::dist
