#pragma once
// Errors that a user can act on. Each carries the exit status of `cistron` that it leads to.
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace cistron {

/// The value is the exit status of the program.
enum class ErrorKind : int {
  kFailed = 1,      ///< failed while running
  kUsage = 2,       ///< command line or configuration
  kBadData = 3,     ///< input data
  kOutOfSpace = 4,  ///< memory or disk
};

/// `what()` is one line, `<what>: <where>: <what to do>`; the program puts `cistron: error: ` before it.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Error(ErrorKind kind, std::string_view what, std::string_view where, std::string_view advice)
      : Error(kind, fmt::format("{}: {}: {}", what, where, advice)) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

[[noreturn]] void throw_check_failed(const char* condition, const std::string& message);

}  // namespace cistron

/// Throws `Error(kFailed)` with the formatted message and the condition. Operations tag the message: `"[rms_norm] ..."`.
#define CISTRON_CHECK(condition, ...)                                        \
  do {                                                                       \
    if (!(condition)) [[unlikely]]                                           \
      ::cistron::throw_check_failed(#condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
