#pragma once
// Collectives that run beside the computation: jobs on a thread of their own, one after the other, in the order in which they
// were given. Ranks that give the same jobs in the same order cannot wait for each other in a circle.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace cistron::dist {

class Background {
 public:
  using Job = std::function<void()>;
  /// `abandon` is called when jobs are left undone, and must make them end soon: an error has unwound this object's owner.
  explicit Background(std::function<void()> abandon);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// A job touches nothing that others use before `wait` has returned for it. Gives its number.
  int64_t submit(Job job);
  /// Until job `number` is done. Throws again what it, or one before it, threw; no job runs after that.
  void wait(int64_t number);
  /// Never waits. Throws as `wait`.
  [[nodiscard]] bool is_done(int64_t number);

 private:
  void run();
  void check_error() const;

  std::function<void()> abandon_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  int64_t submitted_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cistron::dist
