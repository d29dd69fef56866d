// A library to preload: writes down, in order, everything that changes a folder, for power_loss.py to make of it what a disk may
// hold after the power went.
//   LOG_UNDER=DIR   what below DIR is written down
//   LOG_TO=FILE     a record each: "call fd size path\tother\n", then `size` bytes of data
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

constexpr int kFiles = 4096;
std::atomic<bool> watched[kFiles];
std::mutex mutex;  // the log's order is the calls'

bool is_under(const char* path) {
  static const char* const folder = std::getenv("LOG_UNDER");
  return folder != nullptr && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

bool is_watched(int fd) { return fd >= 0 && fd < kFiles && watched[fd]; }

int log_file() {
  static const int fd =
      static_cast<int>(syscall(SYS_openat, AT_FDCWD, std::getenv("LOG_TO"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  return fd;
}

void log(const char* call, int fd, const std::string& path, const std::string& other = "", const void* data = nullptr,
         size_t size = 0) {
  std::string record =
      std::string(call) + ' ' + std::to_string(fd) + ' ' + std::to_string(size) + ' ' + path + '\t' + other + '\n';
  record.append(static_cast<const char*>(data), size);
  if (syscall(SYS_write, log_file(), record.data(), record.size()) != static_cast<ssize_t>(record.size())) std::abort();
}

std::string path_in(int folder, const char* path) {
  if (*path == '/' || folder == AT_FDCWD) return path;
  char name[PATH_MAX] = "";
  (void)!readlink(("/proc/self/fd/" + std::to_string(folder)).c_str(), name, sizeof name - 1);
  return std::string(name) + '/' + path;
}

mode_t mode_of(int flags, va_list list) { return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0; }

int open_path(int folder, const char* name, int flags, mode_t mode) {
  const std::string path = path_in(folder, name);
  const std::lock_guard lock(mutex);
  const int fd = static_cast<int>(syscall(SYS_openat, folder, name, flags, mode));
  if (fd < 0 || fd >= kFiles) return fd;
  watched[fd] = is_under(path.c_str());
  if (watched[fd]) log((flags & O_TRUNC) != 0 ? "create" : (flags & O_CREAT) != 0 ? "append" : "open", fd, path);
  return fd;
}

ssize_t wrote(int fd, const void* data, ssize_t size, off_t at) {
  if (size > 0 && is_watched(fd)) log("write", fd, std::to_string(at), "", data, static_cast<size_t>(size));
  return size;
}

int did(int result, const char* call, const std::string& path, const std::string& other = "") {
  if (result == 0 && is_under(path.c_str())) log(call, -1, path, other);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int fd = open_path(AT_FDCWD, path, flags, mode_of(flags, list));
  va_end(list);
  return fd;
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int fd = open_path(folder, path, flags, mode_of(flags, list));
  va_end(list);
  return fd;
}
// What a build with _FORTIFY_SOURCE, Ubuntu's default, calls where no mode is given.
int __open_2(const char* path, int flags) { return open_path(AT_FDCWD, path, flags, 0); }  // NOLINT(bugprone-reserved-identifier)
int __openat_2(int folder, const char* path, int flags) {                                  // NOLINT(bugprone-reserved-identifier)
  return open_path(folder, path, flags, 0);
}
ssize_t write(int fd, const void* data, size_t size) {  // appends: offset -1
  const std::lock_guard lock(mutex);
  return wrote(fd, data, syscall(SYS_write, fd, data, size), -1);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  const std::lock_guard lock(mutex);
  return wrote(fd, data, syscall(SYS_pwrite64, fd, data, size, at), at);
}
int fsync(int fd) {
  const std::lock_guard lock(mutex);
  const auto result = static_cast<int>(syscall(SYS_fsync, fd));
  if (result == 0 && is_watched(fd)) log("sync", fd, "");
  return result;
}
int close(int fd) {
  const std::lock_guard lock(mutex);
  if (is_watched(fd)) watched[fd] = false;
  return static_cast<int>(syscall(SYS_close, fd));
}
int rename(const char* from, const char* to) noexcept {
  const std::lock_guard lock(mutex);
  return did(static_cast<int>(syscall(SYS_rename, from, to)), "rename", from, to);
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  const std::lock_guard lock(mutex);
  return did(static_cast<int>(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags)), "exchange", from, to);
}
int mkdir(const char* path, mode_t mode) noexcept {
  const std::lock_guard lock(mutex);
  return did(static_cast<int>(syscall(SYS_mkdir, path, mode)), "mkdir", path);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  const std::string whole = path_in(folder, path);
  const std::lock_guard lock(mutex);
  return did(static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)), "remove", whole);
}
int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int result = unlinkat(AT_FDCWD, path, 0);
  return result == 0 ? 0 : unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

}  // extern "C"
