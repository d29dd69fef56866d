#pragma once
// What the libraries that make calls fail share: settings from the environment, and how they say what they counted.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

/// Of the environment; empty where there is none.
inline const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// Into the file FAIL_COUNT, if there is one, past the functions that these libraries stand before.
inline void report_count(long count) {
  const char* path = setting("FAIL_COUNT");
  if (*path == '\0') return;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666));
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%ld\n", count);
  (void)!syscall(SYS_write, fd, text, size);
  syscall(SYS_close, fd);
}
