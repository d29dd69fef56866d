#pragma once
// All of MPI that is used: small and large messages between two ranks, begun and tested, never waited for. So every wait is
// ours and bounded, and the first message of each collective, a header to every peer, tells who has arrived and with what.
#include <mpi.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cistron/dist/collective.h"

namespace cistron::dist {

/// What a rank tells each peer before a byte of a collective moves.
struct Header {
  Signature signature;
  int64_t bytes = 0;  ///< that the receiver will get
};

/// One collective of one communicator: headers, then bytes, then (all-reduce) the reduced blocks.
class MpiOperation {
 public:
  MpiOperation(Collective call, const Membership& who, int context) : call_(std::move(call)), who_(who), context_(context) {}

  void begin();
  /// Does what can be done now; true when the collective is complete. Throws on a mismatch.
  bool advance();
  [[nodiscard]] bool done() const { return stage_ == Stage::kDone; }
  [[noreturn]] void throw_late_peers() const;
  [[nodiscard]] std::string place() const { return place_of(call_.signature, who_); }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return who_.timeout; }

 private:
  enum class Stage { kHeaders, kBytes, kReduced, kDone };

  struct Message {
    int peer;
    bool receive;
  };

  bool messages_complete();
  void check_header(int peer) const;
  Stage next_stage();
  void exchange_bytes();
  void exchange_reduced();
  // Reductions go by pieces, so that what they hold of their peers' is bounded.
  void exchange_pieces();
  void reduce_piece();
  [[nodiscard]] bool has_more_pieces() const;
  [[nodiscard]] int64_t piece_bytes() const;
  [[nodiscard]] Segment piece_of(const Segment& block) const;
  void send(int peer, const void* data, int64_t bytes, int tag);
  void receive(int peer, void* data, int64_t bytes, int tag);
  [[nodiscard]] std::vector<int> peers_in_turn() const;
  [[nodiscard]] std::vector<int> unfinished(bool receive) const;
  [[nodiscard]] int header_tag() const { return 2 * context_; }
  [[nodiscard]] int bytes_tag() const { return 2 * context_ + 1; }

  Collective call_;
  Membership who_;
  int context_;
  Stage stage_ = Stage::kHeaders;
  std::vector<Header> sent_, received_;
  std::vector<MPI_Request> requests_;     // MPI_REQUEST_NULL when complete
  std::vector<Message> messages_;         // of each request
  std::unique_ptr<std::byte[]> staging_;  // a reduction's piece of each peer
  int64_t reduced_ = 0;                   // bytes of every block
};

/// The process's part in MPI. Calls are made under its lock, by any thread.
class MpiRuntime {
 public:
  MpiRuntime() = default;
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  void begin(MpiOperation& operation, int context);
  void wait(const MpiOperation& operation, int context);
  /// Nothing can be done from now on.
  void fail(const std::string& why);
  /// Its buffers go: nothing of MPI may be touched from now on. Keeps what MPI still holds.
  void drop(std::unique_ptr<MpiOperation> operation);
  /// The lowest context number that this process has not used; contexts with a rank in common must differ.
  [[nodiscard]] int next_context() const { return next_context_; }
  void use_context(int context) { next_context_ = context + 1; }

 private:
  void check(const MpiOperation& operation) const;
  /// Of everything under way, so that no rank depends on the order in which another waits.
  void progress();
  /// One round for `operation`, with the lock held: progress, or the error that ends the wait.
  bool advance(const MpiOperation& operation, int context, bool late);

  std::mutex mutex_;
  std::map<int, std::deque<MpiOperation*>> under_way_;  // by context; each context goes in order
  std::vector<std::unique_ptr<MpiOperation>> dropped_;
  std::optional<std::string> failure_;
  int next_context_ = 1;
};

}  // namespace cistron::dist
