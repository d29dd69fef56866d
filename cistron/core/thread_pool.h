#pragma once
// The program's own threads. Work is cut into tasks whose bounds never depend on the number of threads, so results don't either.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cistron {

class ThreadPool {
 public:
  /// 0: all cores that this process may use.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// Calls `task(i)` for each i in [0, count), in any order, on any thread, the caller's included; returns when all are done.
  /// The first exception is thrown again here. A task must not call it again.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& task);

 private:
  void work();
  void wake();
  void end();
  void run_tasks();
  bool join(uint64_t& seen);
  void wait_for_loop(uint64_t seen);
  void wait_for_members();

  std::vector<std::thread> workers_;
  // The loop's number, whether it is open, and how many workers are in it. A worker joins while it is open; the caller closes it
  // when no task is left, and waits for nobody who has not joined: a late worker costs nothing.
  std::atomic<uint64_t> loop_{0};
  std::atomic<int> asleep_{0};  // workers
  std::mutex mutex_;            // for sleeping, and of error_
  std::condition_variable start_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;
};

}  // namespace cistron
