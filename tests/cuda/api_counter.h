#pragma once
// Counts what a program asks of the CUDA driver, under every library: CUPTI's callbacks, found at run time.
#include <atomic>
#include <map>
#include <mutex>
#include <string>

namespace cistron::test {

class ApiCounter {
 public:
  /// Why nothing can be counted here, or "".
  static std::string unavailable();

  ApiCounter();
  ~ApiCounter();
  ApiCounter(const ApiCounter&) = delete;
  ApiCounter& operator=(const ApiCounter&) = delete;

  /// Calls since then for which the host waits, or by which it learns of the device's data: by the driver's names for them.
  [[nodiscard]] std::map<std::string, int> waits() const;
  /// All calls.
  [[nodiscard]] int calls() const { return calls_; }

  /// The callback's part.
  void count(const char* function, const void* parameters);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int> waits_;
  std::atomic<int> calls_ = 0;
  void* subscriber_ = nullptr;
};

}  // namespace cistron::test
