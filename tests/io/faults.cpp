// Stands before the C library's functions in this program, so that a test can make any of them fail.
#include "tests/io/faults.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

namespace cistron::testing {
namespace {

std::atomic<int64_t> calls{0}, fail_from{0}, fail_to{0};
std::atomic<int> fail_with{0};

bool fails(bool can_be_interrupted = false) {
  if (fail_with == EINTR && !can_be_interrupted) return false;
  const int64_t call = ++calls;
  if (call < fail_from || call >= fail_to) return false;
  errno = fail_with;
  return true;
}

}  // namespace

// Calls that fail in no other way here.
bool interrupted() { return fail_with == EINTR && fails(true); }

FailCalls::FailCalls(int64_t first, int error, int64_t times) {
  calls = 0;
  fail_with = error;
  fail_from = first;
  fail_to = first + times;
}
FailCalls::~FailCalls() { fail_from = fail_to = 0; }
int64_t FailCalls::count() { return calls; }

}  // namespace cistron::testing

extern "C" {

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  if (cistron::testing::fails(true)) return errno == 0 ? 0 : -1;
  // Short writes are legal, and a good writer goes on.
  return syscall(SYS_pwrite64, fd, data, size > 4096 ? size / 2 : size, offset);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

int fsync(int fd) { return cistron::testing::fails(true) ? -1 : static_cast<int>(syscall(SYS_fsync, fd)); }

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return cistron::testing::interrupted() ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int flock(int fd, int operation) noexcept {
  return cistron::testing::interrupted() ? -1 : static_cast<int>(syscall(SYS_flock, fd, operation));
}

int rename(const char* from, const char* to) noexcept {
  return cistron::testing::fails() ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  return cistron::testing::fails() ? -1 : static_cast<int>(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}

int mkdir(const char* path, mode_t mode) noexcept {
  return cistron::testing::fails() ? -1 : static_cast<int>(syscall(SYS_mkdir, path, mode));
}

}  // extern "C"
