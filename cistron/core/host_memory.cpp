#include "cistron/core/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "cistron/core/error.h"

namespace cistron {

namespace fs = std::filesystem;

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

int64_t number_in(const fs::path& file) {
  int64_t number = 0;
  return std::ifstream(file) >> number ? number : kUnknown;  // "max" is no number
}

// What a group holds of files that the kernel drops when it needs the room.
int64_t droppable(const fs::path& group) {
  std::ifstream file(group / "memory.stat");
  int64_t bytes = 0;
  for (std::string key; file >> key >> bytes;)
    if (key == "inactive_file") return bytes;
  return 0;
}

int64_t available_in(const fs::path& group) {
  const int64_t most = number_in(group / "memory.max"), used = number_in(group / "memory.current");
  return most == kUnknown || used == kUnknown ? kUnknown : std::max<int64_t>(most - used + droppable(group), 0);
}

// The process's own group and all above it: each has a limit.
int64_t control_group_available() {
  const fs::path root("/sys/fs/cgroup");
  int64_t available = available_in(root);
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2
    for (fs::path group = fs::path(line.substr(4)); !group.empty(); group = group.parent_path())
      available = std::min(available, available_in(root / group));
  }
  return available;
}

// What `ulimit -v` and `ulimit -d` leave. Some is kept back for what nobody plans: stacks and arenas of threads, what libraries
// write for themselves as they run.
int64_t limits_available() {
  constexpr int64_t kKeptBack = int64_t{256} << 20;
  int64_t pages[6]{};  // of /proc/self/statm: size, resident, shared, text, lib, data and stack
  std::ifstream file("/proc/self/statm");
  for (int64_t& count : pages) file >> count;
  int64_t available = kUnknown;
  for (const auto& [resource, used] : {std::pair(RLIMIT_AS, pages[0]), std::pair(RLIMIT_DATA, pages[5])}) {
    rlimit limit{};
    if (!file || getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    const auto most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kUnknown));
    available = std::min(available, std::max<int64_t>(most - used * sysconf(_SC_PAGESIZE) - kKeptBack, 0));
  }
  return available;
}

}  // namespace

int64_t available_host_memory() { return std::min({meminfo_available(), control_group_available(), limits_available()}); }

void require_host_memory(int64_t bytes, std::string_view advice) {
  if (const int64_t available = available_host_memory(); bytes > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory", fmt::format("{} bytes are needed, {} available", bytes, available),
                advice);
}

}  // namespace cistron
