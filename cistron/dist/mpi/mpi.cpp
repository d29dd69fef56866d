#include "cistron/dist/mpi.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "cistron/core/current_error.h"
#include "cistron/core/start_thread.h"
#include "cistron/dist/mpi/runtime.h"
#include "cistron/dist/patience.h"

namespace cistron::dist {
namespace {

class MpiWork : public Work {
 public:
  MpiWork(std::unique_ptr<MpiOperation> operation, MpiRuntime& runtime, int context)
      : operation_(std::move(operation)), runtime_(runtime), context_(context) {
    runtime_.begin(*operation_, context_);
  }
  ~MpiWork() override { runtime_.drop(std::move(operation_)); }
  MpiWork(const MpiWork&) = delete;
  MpiWork& operator=(const MpiWork&) = delete;
  void wait() override { runtime_.wait(*operation_, context_); }

 private:
  std::unique_ptr<MpiOperation> operation_;
  MpiRuntime& runtime_;
  int context_;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(Membership who, MpiRuntime& runtime, int context)
      : Communicator(std::move(who)), runtime_(runtime), context_(context) {}
  void abandon(const std::string& why) override { runtime_.fail(why); }

 private:
  std::unique_ptr<Work> start(Collective call) override {
    return std::make_unique<MpiWork>(std::make_unique<MpiOperation>(std::move(call), membership(), context_), runtime_, context_);
  }
  // The highest number that is free on any of the ranks is free on all.
  std::unique_ptr<Communicator> make_part(Membership part) override {
    int32_t context = runtime_.next_context();
    all_reduce(Tensor::view(std::span(&context, 1)), Reduction::kMax).wait();
    runtime_.use_context(context);
    return std::make_unique<MpiCommunicator>(std::move(part), runtime_, context);
  }

  MpiRuntime& runtime_;
  int context_;
};

// MPI waits for all ranks in its start and in its end, and knows no bound: while this lives, there is one.
class Bound {
 public:
  Bound(const char* call, std::chrono::milliseconds timeout)
      : thread_(start_thread([this, call, timeout] {
          std::unique_lock lock(mutex_);
          Patience patience(timeout);
          while (!done_ && !patience.is_over()) changed_.wait_for(lock, patience.slice());
          if (!done_) leave(call, timeout);
        })) {}
  ~Bound() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  [[noreturn]] static void leave(const char* call, std::chrono::milliseconds timeout) {
    fmt::print(stderr, "cistron: error: some rank has not come to {} within {} s: MPI: look at what the ranks printed last\n",
               call, std::chrono::duration<double>(timeout).count());
    std::fflush(stderr);
    std::_Exit(static_cast<int>(ErrorKind::kFailed));  // the launcher ends the others
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

Membership join_world(const Options& options) {
  const Bound bound("MPI_Init_thread", options.timeout);
  int provided = 0, rank = 0, size = 0;
  CISTRON_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) == MPI_SUCCESS,
                "[mpi] MPI_Init_thread failed");
  CISTRON_CHECK(provided >= MPI_THREAD_SERIALIZED, "[mpi] this MPI does not allow threads");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Membership who{.name = "world", .rank = rank, .timeout = options.timeout};
  for (int r = 0; r < size; ++r) who.members.push_back(r);
  return who;
}

[[noreturn]] void abort_all(int rank, const char* message, ErrorKind kind) {
  fmt::print(stderr, "cistron: error: rank {}: {}\n", rank, message);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(kind));
  std::_Exit(static_cast<int>(kind));
}

}  // namespace

void run_mpi(const std::function<void(Communicator&)>& fn, const Options& options) {
  const Membership who = join_world(options);
  MpiRuntime runtime;
  try {
    MpiCommunicator world(who, runtime, 0);
    fn(world);
    world.barrier().wait();  // so that a rank that is late is named
  } catch (...) {
    const Error error = current_error();
    abort_all(who.rank, error.what(), error.kind());
  }
  const Bound bound("MPI_Finalize", options.timeout);
  MPI_Finalize();
}

}  // namespace cistron::dist
