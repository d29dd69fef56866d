// A library to preload: makes system calls on the files of one folder fail, so that a test can have every call fail in turn.
//   FAIL_UNDER=DIR    only files below DIR count
//   FAIL_AT=N         the N-th call fails (from 1); 0: none
//   FAIL_EVER=1       and every one after it
//   FAIL_WITH=ERRNO   how; EINTR: only calls that a signal may interrupt count
//   FAIL_COUNT=FILE   where the number of calls goes at the end
// Counted: opening, writing, syncing, closing, locking, mapping, renaming, removing, making folders, listing them. Reading is
// mapping.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/faults/report.h"

namespace {

constexpr int kFiles = 4096;
std::atomic<long> calls{0};
std::atomic<bool> counted[kFiles];

bool fails(bool can_be_interrupted = false) {
  static const long at = std::atol(setting("FAIL_AT"));
  static const bool ever = *setting("FAIL_EVER") == '1';
  static const int error = std::atoi(setting("FAIL_WITH"));
  if (error == EINTR && !can_be_interrupted) return false;
  const long call = ++calls;
  if (at == 0 || call < at || (call > at && !ever)) return false;
  errno = error;
  return true;
}

bool is_under(const char* path) {
  static const char* const folder = setting("FAIL_UNDER");
  return path != nullptr && *folder != '\0' && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

bool fails_for(const char* path) { return is_under(path) && fails(); }

bool is_counted(int fd) { return fd >= 0 && fd < kFiles && counted[fd]; }
bool is_in(int folder, const char* path) { return *path == '/' ? is_under(path) : is_counted(folder); }

int opened(int fd, bool is_ours) {
  if (fd >= 0 && fd < kFiles) counted[fd] = is_ours;
  return fd;
}

bool fails_for(int fd, bool can_be_interrupted = true) { return is_counted(fd) && fails(can_be_interrupted); }

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

struct Report {
  ~Report() { report_count(calls); }
} report;

int open_path(int folder, const char* path, int flags, mode_t mode) {
  const bool is_ours = is_in(folder, path);
  if (is_ours && fails((flags & O_DIRECTORY) == 0)) return -1;  // the standard library lists folders, and tries once
  return opened(static_cast<int>(syscall(SYS_openat, folder, path, flags, mode)), is_ours);
}

FILE* open_stream(const char* name, const char* path, const char* mode) {
  if (fails_for(path)) return nullptr;
  FILE* file = next<FILE* (*)(const char*, const char*)>(name)(path, mode);
  if (file != nullptr) opened(fileno(file), is_under(path));
  return file;
}

mode_t mode_of(int flags, va_list list) { return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0; }

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_path(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_path(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_path(folder, path, flags, mode);
}
// What a build with _FORTIFY_SOURCE, Ubuntu's default, calls where no mode is given.
int __open_2(const char* path, int flags) { return open_path(AT_FDCWD, path, flags, 0); }  // NOLINT(bugprone-reserved-identifier)
int __openat_2(int folder, const char* path, int flags) {                                  // NOLINT(bugprone-reserved-identifier)
  return open_path(folder, path, flags, 0);
}
FILE* fopen(const char* path, const char* mode) { return open_stream("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_stream("fopen64", path, mode); }
DIR* opendir(const char* path) { return fails_for(path) ? nullptr : next<DIR* (*)(const char*)>("opendir")(path); }
DIR* fdopendir(int fd) { return fails_for(fd, false) ? nullptr : next<DIR* (*)(int)>("fdopendir")(fd); }

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  if (fails_for(fd, false)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, protection, flags, fd, offset));
}
int flock(int fd, int operation) noexcept { return fails_for(fd) ? -1 : static_cast<int>(syscall(SYS_flock, fd, operation)); }

ssize_t write(int fd, const void* data, size_t size) { return fails_for(fd) ? -1 : syscall(SYS_write, fd, data, size); }
ssize_t writev(int fd, const iovec* parts, int count) { return fails_for(fd) ? -1 : syscall(SYS_writev, fd, parts, count); }
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  return fails_for(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  return fails_for(fd) ? -1 : syscall(SYS_pwrite64, fd, data, size, at);
}
int fsync(int fd) { return fails_for(fd) ? -1 : static_cast<int>(syscall(SYS_fsync, fd)); }
int close(int fd) {  // closes whatever it says, as Linux does
  const bool failed = fails_for(fd);
  if (fd >= 0 && fd < kFiles) counted[fd] = false;
  const int error = errno, result = static_cast<int>(syscall(SYS_close, fd));
  if (!failed) return result;
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) noexcept {
  return fails_for(to) ? -1 : static_cast<int>(syscall(SYS_rename, from, to));
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  return fails_for(to) ? -1 : static_cast<int>(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return fails_for(path) ? -1 : static_cast<int>(syscall(SYS_mkdir, path, mode));
}
int unlink(const char* path) noexcept { return fails_for(path) ? -1 : static_cast<int>(syscall(SYS_unlink, path)); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return is_in(folder, path) && fails() ? -1 : static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}
int rmdir(const char* path) noexcept { return fails_for(path) ? -1 : static_cast<int>(syscall(SYS_rmdir, path)); }
int remove(const char* path) noexcept { return fails_for(path) ? -1 : next<int (*)(const char*)>("remove")(path); }

}  // extern "C"
