#pragma once
// Collectives over ranks, the same for every backend: `single`, `threads`, `mpi`.
//
// Every rank of a communicator calls the same collectives in the same order; each returns a `Pending` at once, and the buffers
// must be left alone until its wait(). Results are bit-identical on every repeat: sums go in rank order, whichever rank comes
// first. A rank with nothing to send or receive takes part with zero rows.
//
// What goes wrong is an Error(kFailed) that names the collective, its number on this communicator and the ranks (by their
// numbers in the world); afterwards nothing more can be done over that world:
//   a rank that has not arrived within the timeout, has ended, or has failed;
//   another collective, dtype, root or size on another rank (all sizes are compared before a byte moves).
// Wrong arguments throw on the rank that gave them.
#include <array>
#include <memory>
#include <span>

#include "cistron/core/tensor.h"
#include "cistron/dist/collective.h"

namespace cistron::dist {

struct Options {
  std::chrono::milliseconds timeout = std::chrono::seconds(600);  ///< for each wait
};

/// A collective under way. Backends derive from it.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;

 private:
  friend class Communicator;
  std::array<Tensor, 2> buffers_;  // kept alive
};

/// A collective that was begun. Dropping it before wait() has returned is a failure of this rank: its buffers may be gone.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  explicit Pending(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  /// Returns when this rank's buffers are its own again: results are there, inputs may be overwritten. (A backend with streams
  /// lets the caller's stream wait instead of the host.) Ranks may wait for what they began in any order.
  void wait() {
    if (work_) work_->wait();
    work_.reset();
  }

 private:
  std::unique_ptr<Work> work_;
};

/// Belongs to one thread at a time; a second thread takes a communicator of its own, `split(0, "prefetch")`.
/// Tensors are host tensors (meta tensors on `meta_mesh`). "Rows" are of dim 0; the dims behind it and the dtype are equal on all
/// ranks.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] int rank() const { return who_.rank; }
  [[nodiscard]] int size() const { return who_.size(); }
  [[nodiscard]] const Membership& membership() const { return who_; }

  /// whole [sum rows, ...] = the parts [rows[r], ...] of ranks 0, 1, ... one behind the other. `rows` empty: all the same.
  /// `part` may be its own place in `whole`.
  Pending all_gather(const Tensor& part, const Tensor& whole, std::span<const int64_t> rows = {});
  /// part [rows[rank], ...] = sum over ranks, in rank order, of this rank's rows of their `whole` [sum rows, ...].
  /// f32, f64, i32, i64. `rows` empty: all the same. `part` may be its own place in `whole`.
  Pending reduce_scatter(const Tensor& whole, const Tensor& part, std::span<const int64_t> rows = {});
  /// tensor = sum (in rank order) or maximum over ranks of `tensor`, which has one shape on all. f32, f64, i32, i64.
  Pending all_reduce(const Tensor& tensor, Reduction reduction = Reduction::kSum);
  /// send [sum send_rows, ...]: the first send_rows[0] rows go to rank 0, the next to rank 1, ...; receive
  /// [sum receive_rows, ...]: what came from rank 0, then from rank 1, ... The two must not overlap.
  Pending all_to_all(const Tensor& send, std::span<const int64_t> send_rows, const Tensor& receive,
                     std::span<const int64_t> receive_rows);
  /// tensor = rank `root`'s.
  Pending broadcast(const Tensor& tensor, int root);
  /// Every rank has come here.
  Pending barrier();

  /// A communicator among the ranks that give the same colour, ordered as here. All ranks call it; waits for them. A process
  /// splits on one thread at a time.
  std::unique_ptr<Communicator> split(int colour, std::string name);

  /// This rank takes no further part in its world: whoever waits in it, here (on any thread) or on another rank, soon gets an
  /// error that says `why`. May be called by any thread.
  virtual void abandon(const std::string& /*why*/) {}

 protected:
  explicit Communicator(Membership who) : who_(std::move(who)) {}
  /// Null when it is done already. Must not wait for other ranks.
  virtual std::unique_ptr<Work> start(Collective call) = 0;
  /// Called on all ranks with what each of them gets.
  virtual std::unique_ptr<Communicator> make_part(Membership part) = 0;

 private:
  Pending begin(CollectiveOp op, const Tensor& send, const Tensor& receive, Collective call);
  [[nodiscard]] size_t self() const { return static_cast<size_t>(who_.rank); }

  Membership who_;
  int64_t sequence_ = 0;
};

}  // namespace cistron::dist
