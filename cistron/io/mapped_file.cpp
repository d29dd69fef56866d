#include "cistron/io/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "cistron/core/error.h"
#include "cistron/io/system_call.h"

namespace cistron::io {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason, ErrorKind kind = ErrorKind::kBadData) {
  throw Error(kind, "cannot read the file", path.string(), reason);
}

bool is_of_name(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG; }

// What is wrong with the name is the data's fault, anything else the system's: the file may be whole.
[[noreturn]] void refuse(const std::filesystem::path& path, int error) {
  const bool name = is_of_name(error);
  const bool full = error == ENOSPC || error == EDQUOT || error == ENOMEM;
  refuse(path, std::generic_category().message(error),
         name   ? ErrorKind::kBadData
         : full ? ErrorKind::kOutOfSpace
                : ErrorKind::kFailed);
}

// Every mapping there is, for the handler of a signal, which can reach nothing that is passed along: a list that only grows,
// whose places are used again.
struct Mapping {
  std::atomic<bool> taken{true};
  std::atomic<const std::byte*> begin{nullptr}, end{nullptr};
  std::atomic<const char*> path{nullptr};
  Mapping* next = nullptr;
};
std::atomic<Mapping*> mappings{nullptr};

Mapping* free_mapping() {
  for (Mapping* each = mappings; each != nullptr; each = each->next)
    if (!each->taken.exchange(true)) return each;
  auto* fresh = new Mapping;
  fresh->next = mappings;
  while (!mappings.compare_exchange_weak(fresh->next, fresh)) {
  }
  return fresh;
}

void add_mapping(std::span<const std::byte> bytes, const char* path) {
  Mapping* mapping = free_mapping();
  mapping->path = path;
  mapping->begin = bytes.data();
  mapping->end = bytes.data() + bytes.size();
}

void remove_mapping(std::span<const std::byte> bytes) {
  for (Mapping* each = mappings; each != nullptr; each = each->next)
    if (each->taken && each->begin == bytes.data()) {
      each->begin = each->end = nullptr;
      each->taken = false;
      return;
    }
}

void put(const char* text, size_t size) {
  if (write(STDERR_FILENO, text, size) < 0) return;  // nobody is left to hear of it
}

// Only what a handler of signals may call.
void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Mapping* each = mappings; each != nullptr; each = each->next) {
    if (at < each->begin || at >= each->end) continue;
    constexpr char kWhat[] = "cistron: error: cannot read the file: ";
    constexpr char kAdvice[] = ": it was cut short while it was in use, or its disk failed; get it again\n";
    put(kWhat, sizeof kWhat - 1);
    for (const char* c = each->path; *c != '\0'; ++c) put(static_cast<unsigned char>(*c) < ' ' || *c == '\x7f' ? " " : c, 1);
    put(kAdvice, sizeof kAdvice - 1);
    _exit(static_cast<int>(ErrorKind::kBadData));
  }
  signal(number, SIG_DFL);  // somebody else's: the same access ends the process
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int fd = uninterrupted([&] { return open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
  if (fd < 0) refuse(path_, errno);
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    const int why = errno;
    close(fd);
    refuse(path_, why);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    refuse(path_, "it is not a regular file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int why = errno;
  close(fd);
  if (data == MAP_FAILED) refuse(path_, why);
  bytes_ = {static_cast<const std::byte*>(data), size};
  if (size > 0) add_mapping(bytes_, path_.c_str());
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  remove_mapping(bytes_);
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void say_which_file_shrank() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

bool is_reachable(const std::filesystem::path& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) refuse(path, errno);
  return false;
}

}  // namespace cistron::io
