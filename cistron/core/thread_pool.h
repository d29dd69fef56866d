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
  void run_tasks();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace cistron
