#pragma once
// What a person sees while it runs, on standard error: one live line on a terminal; elsewhere a plain line now and then. Nothing
// waits for the reader: what a terminal (Ctrl-S) or a pipe does not take at once is dropped.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace cistron::train {

struct ProgressOptions {
  std::FILE* stream = stderr;  ///< null: nothing is shown
  bool quiet = false;
  bool live = false;  ///< rewrite one line
  bool color = false;
  double seconds = 10;  ///< between plain lines

  /// For standard error as it is: live on a terminal, coloured there unless NO_COLOR is set.
  static ProgressOptions standard_error(bool quiet);
};

class Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  struct Step {
    int64_t step = 0, steps = 0;
    double loss = 0.0;
    double tokens_per_second = 0.0;
    double seconds_left = 0.0;
  };
  void step(const Step& step);
  /// A line that stays.
  void say(const std::string& text);
  /// A line that stays, shown whatever `quiet` says.
  void warn(const std::string& text);

 private:
  void put(const std::string& text);
  void end_live_line();

  using Clock = std::chrono::steady_clock;
  ProgressOptions options_;
  Clock::time_point last_{};
  int no_wait_fd_ = -1;  // the stream's terminal or pipe
  bool in_live_line_ = false;
};

/// Writes `text` and flushes; waits for a reader that is slow. A stream that takes nothing (closed, full, a pipe that nobody has
/// open) is no error: what is shown must never stop the work.
void show(std::FILE* stream, std::string_view text);

/// 12345678 as "12,345,678".
std::string with_commas(int64_t number);
/// "1:05", "2:03:04".
std::string clock_text(double seconds);

}  // namespace cistron::train
