#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace cistron::io {

/// A regular file, mapped for reading. Throws, naming it: Error(kBadData) where there is none, Error(kOutOfSpace) where memory or
/// the disk has no room for it, Error(kFailed) where this process may or can not read it.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

/// From here on a file that shrinks while it is mapped ends the process with one line that names it, and the status of kBadData,
/// where the system's way is SIGBUS.
void say_which_file_shrank();

/// Whether there is a file or folder. Throws Error(kFailed) where that cannot be known, for want of a permission or by a disk's
/// error, and Error(kBadData) for links that lead in a circle and names that are too long.
bool is_reachable(const std::filesystem::path& path);

}  // namespace cistron::io
