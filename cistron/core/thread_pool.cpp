#include "cistron/core/thread_pool.h"

#include <sched.h>

#include <utility>

#include "cistron/core/start_thread.h"

namespace cistron {

namespace {

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

void end(std::vector<std::thread>& workers, std::mutex& mutex, std::condition_variable& start, bool& stop) {
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  start.notify_all();
  for (auto& worker : workers) worker.join();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = usable_cores();
  workers_.reserve(static_cast<size_t>(num_threads));  // a started thread must find its place
  try {
    for (int i = 1; i < num_threads; ++i) workers_.push_back(start_thread([this] { work(); }));
  } catch (...) {
    end(workers_, mutex_, start_, stop_);
    throw;
  }
}

ThreadPool::~ThreadPool() { end(workers_, mutex_, start_, stop_); }

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::unique_lock lock(mutex_);
  task_ = &task;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_ = static_cast<int>(workers_.size());
  ++generation_;
  lock.unlock();
  start_.notify_all();
  run_tasks();
  lock.lock();
  done_.wait(lock, [this] { return busy_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_tasks() {
  try {
    for (int64_t i = next_++; i < count_; i = next_++) (*task_)(i);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    next_.store(count_);
  }
}

void ThreadPool::work() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    lock.unlock();
    run_tasks();
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace cistron
