#pragma once
// Where ranks that are threads of one process meet. One lock guards everything; bytes move outside it.
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// What all communicators of a world share.
class ThreadWorld {
 public:
  struct Failure {
    int rank;
    std::string message;
  };

  explicit ThreadWorld(int ranks) : ended_(static_cast<size_t>(ranks)) {}

  /// The first failure counts; wakes everybody.
  void fail(int rank, const std::string& message);
  void end(int rank);
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  [[nodiscard]] std::condition_variable& changed() { return changed_; }

  // With the lock held:
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }
  [[nodiscard]] bool has_ended(int rank) const { return ended_[static_cast<size_t>(rank)]; }
  [[nodiscard]] std::vector<int> running() const;
  void fail_locked(int rank, const std::string& message);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::vector<bool> ended_;
};

/// One collective on its way. When all have arrived, whoever waits delivers for any rank that is still due, so that nobody
/// depends on the order in which others wait.
struct Meeting {
  std::vector<const Collective*> calls;  // by rank; null: not arrived
  int arrived = 0;
  int claimed = 0;  // deliveries begun, for ranks 0, 1, ...
  int delivered = 0;

  [[nodiscard]] bool all_arrived() const { return arrived == static_cast<int>(calls.size()); }
  [[nodiscard]] bool done() const { return delivered == static_cast<int>(calls.size()); }
};

/// What the ranks of one communicator share.
struct Rendezvous {
  std::shared_ptr<ThreadWorld> world;
  std::map<int64_t, std::shared_ptr<Meeting>> meetings;                // by sequence, until all have arrived
  std::map<std::pair<int64_t, int>, std::weak_ptr<Rendezvous>> parts;  // by number of the split and first member
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(Membership who, std::shared_ptr<Rendezvous> rendezvous)
      : Communicator(std::move(who)), rendezvous_(std::move(rendezvous)) {}
  void abandon(const std::string& why) override { rendezvous_->world->fail(membership().world_rank(), why); }

 private:
  std::unique_ptr<Work> start(Collective call) override;
  std::unique_ptr<Communicator> make_part(Membership part) override;

  std::shared_ptr<Rendezvous> rendezvous_;
  int64_t splits_ = 0;
};

}  // namespace cistron::dist
