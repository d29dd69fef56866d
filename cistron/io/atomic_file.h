#pragma once
// Files and directories that are whole or absent: written aside as NAME.partial, flushed to the disk (file, then folder),
// renamed. Errors name the file and the system's reason; a full disk is Error(kOutOfSpace). Without `commit` nothing stays
// behind. Where a directory cannot be swapped in one step, what it replaces is NAME.replaced in between. Links are never followed
// in writing; a user's own NAME.partial or NAME.replaced, known by the lack of our mark in it, is Error(kUsage) and stays.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace cistron::io {

/// Throws for the system call that just failed: kOutOfSpace when the disk, quota or memory is full, kUsage for a name that
/// cannot be (too long, links in a circle), else kFailed. Reads errno.
[[noreturn]] void throw_errno(std::string_view what, const std::filesystem::path& where);

/// A new file, in place of what has its name, being written; closed, not removed, at the end. Nothing reaches the disk for sure
/// before `sync`.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Overwrites, or leaves a hole that reads as zeros; `write` goes on where it was.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void sync();
  /// Syncs nothing. Throws when the system reports a late failure.
  void close();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  int64_t offset_ = 0;
};

class AtomicFile {
 public:
  /// Replaces what is there, in `commit`.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) { writer_.write(bytes); }
  void write(std::string_view text) { writer_.write(text); }
  void write_at(int64_t offset, std::span<const std::byte> bytes) { writer_.write_at(offset, bytes); }
  void commit();

 private:
  std::filesystem::path path_;
  FileWriter writer_;
  bool committed_ = false;
};

/// `text` as the whole of `path`, atomically.
void write_file(const std::filesystem::path& path, std::string_view text);

class AtomicDirectory {
 public:
  /// Puts back what a killed run left as NAME.replaced, and creates NAME.partial, empty, in a parent that exists or is made. With
  /// `replace` an existing NAME is swapped out in `commit`; without, it is Error(kUsage), as is another process that is writing
  /// NAME.
  explicit AtomicDirectory(std::filesystem::path path, bool replace = false);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  /// Where to write: NAME.partial.
  [[nodiscard]] const std::filesystem::path& partial() const { return partial_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Syncs every file and folder in it, then renames.
  void commit();

 private:
  void check_free() const;
  void swap_in() const;
  void discard();

  std::filesystem::path path_, partial_;
  bool replace_;
  bool committed_ = false;
  int lock_ = -1;  // NAME.partial itself, open and locked
};

/// Where a process was killed between the two renames of a replacement, NAME is gone and NAME.replaced is whole: renames it back.
void restore_replaced(const std::filesystem::path& path);

/// Makes changes to the directory's entries (a rename, a new file) durable.
void sync_directory(const std::filesystem::path& directory);

/// The directory and those above it that are missing, durably.
void make_directories(const std::filesystem::path& path);

}  // namespace cistron::io
