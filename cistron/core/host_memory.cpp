#include "cistron/core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "cistron/core/error.h"

namespace cistron {

namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

int64_t control_group_available() {
  int64_t most = 0, current = 0;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  if (!(limit >> most) || !(used >> current)) return kUnknown;  // "max" is no number
  return std::max<int64_t>(most - current, 0);
}

}  // namespace

int64_t available_host_memory() { return std::min(meminfo_available(), control_group_available()); }

void require_host_memory(int64_t bytes, std::string_view advice) {
  if (const int64_t available = available_host_memory(); bytes > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory", fmt::format("{} bytes are needed, {} available", bytes, available),
                advice);
}

}  // namespace cistron
