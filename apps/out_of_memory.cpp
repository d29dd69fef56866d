#include "apps/out_of_memory.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <new>
#include <string_view>

#include "cistron/core/error.h"

namespace cistron::apps {

namespace {

// These handlers can reach nothing but globals.
std::atomic<bool> ran_out{false};

void note_and_throw() {
  ran_out = true;
  throw std::bad_alloc();
}

}  // namespace

int say_out_of_memory() noexcept {
  constexpr std::string_view kLine = "cistron: error: out of memory: host: use a smaller model or batch\n";
  (void)!write(STDERR_FILENO, kLine.data(), kLine.size());
  return static_cast<int>(ErrorKind::kOutOfSpace);
}

void end_clearly_without_memory() {
  static const std::terminate_handler previous = std::get_terminate();
  std::set_new_handler(note_and_throw);
  std::set_terminate([] {
    if (ran_out) _exit(say_out_of_memory());
    previous();
  });
}

}  // namespace cistron::apps
