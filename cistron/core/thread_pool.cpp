#include "cistron/core/thread_pool.h"

#include <sched.h>

#include <chrono>
#include <utility>

#include "cistron/core/start_thread.h"

namespace cistron {

namespace {

constexpr uint64_t kMember = 2;  // of a loop; 1: open
constexpr uint64_t kNumber = uint64_t{1} << 32U;

bool is_open(uint64_t loop) { return (loop & 1U) != 0; }
uint64_t members(uint64_t loop) { return loop % kNumber / kMember; }
uint64_t number(uint64_t loop) { return loop / kNumber; }

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// To wake a sleeping thread takes about this long, so spinning costs at most twice what sleeping does.
constexpr std::chrono::microseconds kSpin{50};

template <class Ready>
bool spin_until(Ready&& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = usable_cores();
  workers_.reserve(static_cast<size_t>(num_threads));  // a started thread must find its place
  try {
    for (int i = 1; i < num_threads; ++i) workers_.push_back(start_thread([this] { work(); }));
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  task_ = &task;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  loop_.store((number(loop_.load(std::memory_order_relaxed)) + 1) * kNumber + 1);
  if (asleep_.load() > 0) wake();
  run_tasks();
  wait_for_members();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::wake() {
  std::unique_lock(mutex_).unlock();  // who counted itself asleep has seen the loop or waits now
  start_.notify_all();
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

void ThreadPool::wait_for_members() {
  if (members(loop_.fetch_sub(1)) == 0) return;
  const auto empty = [this] { return members(loop_.load()) == 0; };
  if (spin_until(empty)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, empty);
}

bool ThreadPool::join(uint64_t& seen) {
  for (uint64_t loop = loop_.load(); is_open(loop) && number(loop) != seen;)
    if (loop_.compare_exchange_weak(loop, loop + kMember)) {
      seen = number(loop);
      return true;
    }
  return false;
}

void ThreadPool::wait_for_loop(uint64_t seen) {
  const auto ready = [&] {
    const uint64_t loop = loop_.load();
    return stop_ || (is_open(loop) && number(loop) != seen);
  };
  if (spin_until(ready)) return;
  std::unique_lock lock(mutex_);
  ++asleep_;
  start_.wait(lock, ready);
  --asleep_;
}

void ThreadPool::work() {
  for (uint64_t seen = 0; !stop_;) {
    if (!join(seen)) {
      wait_for_loop(seen);
      continue;
    }
    run_tasks();
    const uint64_t after = loop_.fetch_sub(kMember) - kMember;
    if (is_open(after) || members(after) > 0) continue;
    std::unique_lock(mutex_).unlock();  // the caller has seen it or waits now
    done_.notify_one();
  }
}

}  // namespace cistron
