#pragma once
// What every call of the system on files needs: a signal that comes meanwhile is no failure, and a write that takes nothing is
// one.
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <span>

namespace cistron::io {

/// What `call` gives (-1, and errno, where it fails), called again as long as a signal interrupts it. Not for close: what it
/// closed is closed, whatever it says.
template <class Call>
auto uninterrupted(Call&& call) {
  while (true)
    if (const auto result = call(); result != -1 || errno != EINTR) return result;
}

/// Hands all of `bytes` on: `put(rest)` takes some, as write does, and gives how many. False, and errno, where it fails.
template <class Put>
bool put_all(std::span<const std::byte> bytes, Put&& put) {
  while (!bytes.empty()) {
    const ssize_t taken = uninterrupted([&] { return put(bytes); });
    if (taken == 0) errno = EIO;  // what takes nothing would be asked for ever
    if (taken <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(taken));
  }
  return true;
}

}  // namespace cistron::io
