#include "cistron/train/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

namespace cistron::train {

namespace {

int number_of(std::FILE* stream) { return stream == nullptr ? -1 : fileno(stream); }

// The same terminal or pipe, opened anew: the stream's own mode is shared with the shell and stays as it is. -1: no such thing.
int open_without_waiting(std::FILE* stream) {
  struct stat info{};
  const int fd = number_of(stream);
  if (fd < 0 || fstat(fd, &info) != 0 || !(S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode))) return -1;
  return open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool takes_more(std::FILE* stream) {
  pollfd ready{.fd = number_of(stream), .events = POLLOUT, .revents = 0};
  return ready.fd < 0 || poll(&ready, 1, 0) != 0;
}

}  // namespace

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

Progress::Progress(const ProgressOptions& options) : options_(options), no_wait_fd_(open_without_waiting(options.stream)) {}

Progress::~Progress() {
  end_live_line();
  if (no_wait_fd_ >= 0) close(no_wait_fd_);
}

void Progress::put(const std::string& text) {
  if (no_wait_fd_ >= 0)
    (void)!write(no_wait_fd_, text.data(), text.size());
  else if (takes_more(options_.stream))
    show(options_.stream, text);
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
    put(fmt::format("\r\033[K{}{}{}", options_.color ? "\033[36m" : "", text, options_.color ? "\033[0m" : ""));
  else
    put(text + "\n");
  in_live_line_ = options_.live;
}

void Progress::say(const std::string& text) {
  if (!options_.quiet) warn(text);
}

void Progress::warn(const std::string& text) {
  std::string shown = text;
  for (char& c : shown)  // a name from a file may hold what a terminal obeys
    if ((static_cast<unsigned char>(c) < ' ' && c != '\n') || c == '\x7f') c = ' ';
  put((in_live_line_ ? "\r\033[K" : "") + shown + "\n");
  in_live_line_ = false;
}

void Progress::end_live_line() {
  if (in_live_line_) put("\n");
  in_live_line_ = false;
}

}  // namespace cistron::train
