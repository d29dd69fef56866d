#include "cistron/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cistron/core/error.h"

namespace cistron::io {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason, ErrorKind kind = ErrorKind::kBadData) {
  throw Error(kind, "cannot read the file", path.string(), reason);
}

// What is wrong with the name is the data's fault, anything else the system's: the file may be whole.
[[noreturn]] void refuse(const std::filesystem::path& path, int error) {
  const bool name = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
  const bool full = error == ENOSPC || error == EDQUOT || error == ENOMEM;
  refuse(path, std::generic_category().message(error),
         name   ? ErrorKind::kBadData
         : full ? ErrorKind::kOutOfSpace
                : ErrorKind::kFailed);
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
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
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::optional<std::string> read_if_there(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) return std::nullopt;
  const MappedFile file(path);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

bool is_reachable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace cistron::io
