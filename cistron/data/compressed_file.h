#pragma once
#include <filesystem>
#include <memory>
#include <span>

namespace cistron::data {

/// A file's bytes, unpacked where it is gzip (of any number of members) or bgzip. A damaged or shortened one is Error(kBadData),
/// never an early end: bgzip must have its end block.
class CompressedFile {
 public:
  /// Opens local files only, whatever the name looks like; a pipe will do.
  explicit CompressedFile(std::filesystem::path path);
  ~CompressedFile();
  CompressedFile(CompressedFile&&) noexcept;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Fills `buffer` as far as the file goes; 0 at its end.
  size_t read(std::span<char> buffer);

 private:
  struct Handle;
  std::filesystem::path path_;
  std::unique_ptr<Handle> handle_;
};

}  // namespace cistron::data
