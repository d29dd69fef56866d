#include "cistron/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "cistron/core/error.h"

namespace cistron::io {
namespace fs = std::filesystem;
namespace {

fs::path beside(const fs::path& path, const char* suffix) {
  if (!path.has_filename()) return beside(path.parent_path(), suffix);  // "run/" is "run"
  fs::path result = path;
  return result += suffix;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void sync_path(const fs::path& path, int flags) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) throw_errno("cannot open to sync", path);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  errno = error;
  if (result != 0) throw_errno("cannot sync", path);
}

// Something is there, a dangling link too.
bool is_taken(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw_errno("cannot rename into place", to);
}

void check(const std::error_code& error, std::string_view what, const fs::path& where) {
  if (!error) return;
  errno = error.value();
  throw_errno(what, where);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  check(error, "cannot remove", path);
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);
  check(error, "cannot create the directory", path);
}

void remove_contents(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    remove_tree(entry->path());
  check(error, "cannot list", directory);
}

bool is_same(int fd, const fs::path& path) {
  struct stat open_one{}, named_one{};
  return fstat(fd, &open_one) == 0 && stat(path.c_str(), &named_one) == 0 && open_one.st_dev == named_one.st_dev &&
         open_one.st_ino == named_one.st_ino;
}

// One process at a time writes there: the folder itself is the lock, which goes with the process that has it. (A file system
// without locks has none.)
int make_and_lock(const fs::path& partial, const fs::path& path) {
  std::error_code ignored;
  if (is_taken(partial) && !fs::is_directory(partial, ignored)) remove_tree(partial);
  while (true) {
    make_directory(partial);
    const int fd = open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) continue;  // another process has just been done with it
    if (fd < 0) {
      const int error = errno;
      rmdir(partial.c_str());
      errno = error;
      throw_errno("cannot open the directory", partial);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      throw Error(ErrorKind::kUsage, "another process is writing this", path.string(), "wait for it, or choose another place");
    }
    if (is_same(fd, partial)) return fd;
    close(fd);
  }
}

fs::path replaced(const fs::path& path) { return beside(path, ".replaced"); }

// Leaves before roots, so that a folder is on the disk only after what it holds.
void sync_tree(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->is_directory(error))
      sync_tree(entry->path());
    else
      sync_path(entry->path(), 0);
  }
  check(error, "cannot list", directory);
  sync_directory(directory);
}

}  // namespace

namespace {

const char* advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "; free some space";
    case EFBIG:
      return "; raise the limit on a file's size (ulimit -f)";
    case EMFILE:
      return "; raise the limit on open files (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

void throw_errno(std::string_view what, const fs::path& where) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw Error(full ? ErrorKind::kOutOfSpace : ErrorKind::kFailed, what, where.string(),
              std::generic_category().message(error) + advice(error));
}

void sync_directory(const fs::path& directory) { sync_path(directory, O_DIRECTORY); }

void make_directories(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  make_directories(parent_of(path));
  make_directory(path);
  sync_directory(parent_of(path));
}

FileWriter::FileWriter(fs::path path)
    : path_(std::move(path)), fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw_errno("cannot create the file", path_);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write_at(offset_, bytes);
  offset_ += static_cast<int64_t>(bytes.size());
}

void FileWriter::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("cannot write the file", path_);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
}

void FileWriter::sync() {
  if (fsync(fd_) != 0) throw_errno("cannot sync", path_);
}

void FileWriter::close() {
  const int fd = fd_;
  fd_ = -1;
  if (fd >= 0 && ::close(fd) != 0) throw_errno("cannot close the file", path_);
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), writer_(beside(path_, ".partial")) {}

AtomicFile::~AtomicFile() {
  std::error_code ignored;
  if (!committed_) fs::remove(writer_.path(), ignored);
}

void AtomicFile::commit() {
  writer_.sync();
  writer_.close();
  rename_path(writer_.path(), path_);
  committed_ = true;
  sync_directory(parent_of(path_));
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

AtomicDirectory::AtomicDirectory(fs::path path, bool replace)
    : path_(beside(path, "")), partial_(beside(path, ".partial")), replace_(replace) {
  make_directories(parent_of(path_));
  lock_ = make_and_lock(partial_, path_);
  try {
    check_free();
    remove_contents(partial_);  // of a run that was killed
  } catch (...) {
    discard();
    throw;
  }
}

void AtomicDirectory::check_free() const {
  restore_replaced(path_);
  if (!replace_ && is_taken(path_))
    throw Error(ErrorKind::kUsage, "the output exists already", path_.string(),
                "choose another place, or replace it with --force");
}

AtomicDirectory::~AtomicDirectory() { discard(); }

void AtomicDirectory::discard() {
  std::error_code ignored;
  try {
    if (!committed_) fs::remove_all(partial_, ignored);
  } catch (const std::bad_alloc&) {  // it stays until the next writer clears it
  }
  if (lock_ >= 0) close(lock_);
}

void AtomicDirectory::commit() {
  sync_tree(partial_);
  const bool swap = replace_ && is_taken(path_);
  const fs::path old = replaced(path_);
  if (swap) {
    remove_tree(old);
    // One step where the file system can; else two, with the old one left whole beside it between them.
    if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
      rename_path(partial_, old);
    } else {
      rename_path(path_, old);
      if (rename(partial_.c_str(), path_.c_str()) != 0) {
        const int error = errno;
        rename(old.c_str(), path_.c_str());
        errno = error;
        throw_errno("cannot rename into place", path_);
      }
    }
  } else {
    rename_path(partial_, path_);
  }
  committed_ = true;
  sync_directory(parent_of(path_));
  if (swap) remove_tree(old);
}

void restore_replaced(const fs::path& path) {
  if (!is_taken(path) && is_taken(replaced(path))) rename_path(replaced(path), path);
}

}  // namespace cistron::io
