#include "cistron/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace cistron::train {

void show(std::FILE* stream, std::string_view text) {
  if (stream == nullptr) return;
  // Not fmt::print, which throws.
  (void)std::fwrite(text.data(), 1, text.size(), stream);
  (void)std::fflush(stream);
}

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::isfinite(seconds) && seconds > 0 ? seconds : 0);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

ProgressOptions ProgressOptions::standard_error(bool quiet) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const char* no_color = std::getenv("NO_COLOR");
  return {.stream = stderr, .quiet = quiet, .live = terminal, .color = terminal && (no_color == nullptr || *no_color == '\0')};
}

void Progress::step(const Step& s) {
  if (options_.quiet) return;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - last_).count();
  if (since < (options_.live ? 0.1 : options_.seconds) && s.step != s.steps) return;
  last_ = now;
  const std::string text = fmt::format("step {}/{}  loss {:.4f}  {} tokens/s  {} left", s.step, s.steps, s.loss,
                                       with_commas(std::llround(s.tokens_per_second)), clock_text(s.seconds_left));
  if (options_.live)
    show(options_.stream, fmt::format("\r\033[K{}{}{}", options_.color ? "\033[36m" : "", text, options_.color ? "\033[0m" : ""));
  else
    show(options_.stream, text + "\n");
  in_live_line_ = options_.live;
}

void Progress::say(const std::string& text) {
  if (!options_.quiet) warn(text);
}

void Progress::warn(const std::string& text) {
  show(options_.stream, (in_live_line_ ? "\r\033[K" : "") + text + "\n");
  in_live_line_ = false;
}

void Progress::end_live_line() {
  if (in_live_line_) show(options_.stream, "\n");
  in_live_line_ = false;
}

}  // namespace cistron::train
