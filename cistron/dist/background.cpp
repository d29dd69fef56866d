#include "cistron/dist/background.h"

#include <utility>

#include "cistron/core/start_thread.h"

namespace cistron::dist {

Background::Background(std::function<void()> abandon) : abandon_(std::move(abandon)), thread_(start_thread([this] { run(); })) {}

Background::~Background() {
  bool unfinished = false;
  {
    const std::lock_guard lock(mutex_);
    unfinished = done_ != submitted_ && !error_;
    jobs_.clear();
    stop_ = true;
  }
  changed_.notify_all();
  if (unfinished) abandon_();
  thread_.join();
}

int64_t Background::submit(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    ++submitted_;
  }
  changed_.notify_all();
  return submitted_;
}

void Background::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || error_; });
  check_error();
}

bool Background::is_done(int64_t number) {
  const std::lock_guard lock(mutex_);
  check_error();
  return done_ >= number;
}

void Background::check_error() const {
  if (error_) std::rethrow_exception(error_);
}

void Background::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ++done_;
    if (error) {
      error_ = error;
      jobs_.clear();
    }
    changed_.notify_all();
    if (error) return;
  }
}

}  // namespace cistron::dist
