#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

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

/// All of a file as text; nothing where there is none. Throws as MappedFile where there is one that cannot be read.
std::optional<std::string> read_if_there(const std::filesystem::path& path);

/// Whether a file or folder can be reached there; never throws.
bool is_reachable(const std::filesystem::path& path);

}  // namespace cistron::io
