#include "cistron/io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <system_error>

#include "cistron/core/error.h"
#include "cistron/io/system_call.h"

namespace cistron::io {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kReplaced = ".replaced", kPartial = ".partial";

fs::path beside(const fs::path& path, std::string_view suffix) {
  if (!path.has_filename()) return beside(path.parent_path(), suffix);  // "run/" is "run"
  constexpr size_t kMost = NAME_MAX - kReplaced.size();                 // the longest suffix
  if (path.filename().native().size() > kMost)
    throw Error(ErrorKind::kUsage, fmt::format("a name of {} bytes", path.filename().native().size()), path.string(),
                fmt::format("give one of at most {}, which leaves room for '{}' while it is written", kMost, kReplaced));
  fs::path result = path;
  return result += suffix;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

void sync_path(const fs::path& path, int flags) {
  const int fd = uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | flags); });
  if (fd < 0) throw_errno("cannot open to sync", path);
  const int result = uninterrupted([&] { return fsync(fd); });
  const int error = errno;
  close(fd);
  errno = error;
  if (result != 0) throw_errno("cannot sync", path);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) throw_errno("cannot rename into place", to);
}

void check(const std::error_code& error, std::string_view what, const fs::path& where) {
  if (!error) return;
  errno = error.value();
  throw_errno(what, where);
}

// Of what is there itself, never of what a link points to. A look-up that failed is no answer.
fs::file_type type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::none) check(error, "cannot look up", path);
  return type;
}

bool is_taken(const fs::path& path) { return type_of(path) != fs::file_type::not_found; }

bool holds_nothing(const fs::path& directory) {
  std::error_code error;
  const bool empty = fs::is_empty(directory, error);
  check(error, "cannot list", directory);
  return empty;
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

// In what is being written, and in what is being replaced: by it a leftover is known as ours, and not a user's of that name.
constexpr const char* kMark = ".cistron-partial";

void remove_contents(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().filename() != kMark) remove_tree(entry->path());
  check(error, "cannot list", directory);
}

// A folder itself, never what a link points to.
int open_folder(const fs::path& path) {
  return uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); });
}

bool is_same(int fd, const fs::path& path) {
  struct stat open_one{}, named_one{};
  return fstat(fd, &open_one) == 0 && lstat(path.c_str(), &named_one) == 0 && open_one.st_dev == named_one.st_dev &&
         open_one.st_ino == named_one.st_ino;
}

void set_mark(int folder, const fs::path& path) {
  const int fd = uninterrupted([&] { return openat(folder, kMark, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666); });
  if (fd < 0) throw_errno("cannot create the file", path / kMark);
  close(fd);
  if (uninterrupted([&] { return fsync(folder); }) != 0 && errno != EINVAL)
    throw_errno("cannot sync the directory", path);  // before anything else has a name there
}

void remove_mark(const fs::path& path) {
  const int folder = open_folder(path);
  if (folder < 0) return;
  (void)unlinkat(folder, kMark, 0);  // left there it harms nothing
  close(folder);
}

// Marked, or empty: a process was killed before it could mark it.
bool is_ours(const fs::path& path) {
  return type_of(path) == fs::file_type::directory && (is_taken(path / kMark) || holds_nothing(path));
}

[[noreturn]] void refuse_foreign(const fs::path& leftover) {
  throw Error(ErrorKind::kUsage, "this is in the way, and no killed process of this program left it", leftover.string(),
              "move it away, or choose another place");
}

// The mark last, on the disk too: what is left of it when the power goes must still be known as ours.
void remove_ours(const fs::path& path) {
  remove_contents(path);
  if (const int folder = open_folder(path); folder >= 0) {
    (void)uninterrupted([&] { return fsync(folder); });  // a disk that fails keeps nobody from removing
    close(folder);
  }
  remove_tree(path);
}

void remove_leftover(const fs::path& path) {
  if (!is_taken(path)) return;
  if (!is_ours(path)) refuse_foreign(path);
  remove_ours(path);
}

// One process at a time writes there: the folder itself is the lock, which goes with the process that has it. (A file system
// without locks has none.)
int make_and_lock(const fs::path& partial, const fs::path& path) {
  while (true) {
    const bool is_new = mkdir(partial.c_str(), 0777) == 0;
    if (!is_new && errno != EEXIST) throw_errno("cannot create the directory", partial);
    const int fd = open_folder(partial);
    if (fd < 0 && errno == ENOENT) continue;  // another process has just been done with it
    if (fd < 0 && !is_new && (errno == ELOOP || errno == ENOTDIR)) refuse_foreign(partial);
    if (fd < 0) {
      const int error = errno;
      if (is_new) rmdir(partial.c_str());
      errno = error;
      throw_errno("cannot open the directory", partial);
    }
    if (uninterrupted([&] { return flock(fd, LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      throw Error(ErrorKind::kUsage, "another process is writing this", path.string(), "wait for it, or choose another place");
    }
    if (is_same(fd, partial)) return fd;
    close(fd);
  }
}

fs::path replaced(const fs::path& path) { return beside(path, kReplaced); }

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
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM;
  const bool name = error == ENAMETOOLONG || error == ELOOP;
  throw Error(full   ? ErrorKind::kOutOfSpace
              : name ? ErrorKind::kUsage
                     : ErrorKind::kFailed,
              what, where.string(), std::generic_category().message(error) + advice(error));
}

void sync_directory(const fs::path& directory) { sync_path(directory, O_DIRECTORY); }

void make_directories(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return;
  make_directories(parent_of(path));
  make_directory(path);
  sync_directory(parent_of(path));
}

FileWriter::FileWriter(fs::path path) : path_(std::move(path)) {
  (void)unlink(path_.c_str());  // never through a link, never into what another name has too
  fd_ = uninterrupted([&] { return open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666); });
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
  const std::byte* const first = bytes.data();
  const auto put = [&](std::span<const std::byte> rest) {
    return pwrite(fd_, rest.data(), rest.size(), offset + (rest.data() - first));
  };
  if (!put_all(bytes, put)) throw_errno("cannot write the file", path_);
}

void FileWriter::sync() {
  if (uninterrupted([&] { return fsync(fd_); }) != 0) throw_errno("cannot sync", path_);
}

void FileWriter::close() {
  const int fd = fd_;
  fd_ = -1;
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) throw_errno("cannot close the file", path_);
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)), writer_(beside(path_, kPartial)) {}

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
    : path_(beside(path, "")), partial_(beside(path, kPartial)), replace_(replace) {
  make_directories(parent_of(path_));
  lock_ = make_and_lock(partial_, path_);
  try {
    if (!is_ours(partial_)) refuse_foreign(partial_);
  } catch (...) {
    (void)rmdir(partial_.c_str());  // where there is nothing in it, it is no user's
    close(lock_);
    throw;
  }
  try {
    set_mark(lock_, partial_);
    check_free();
    remove_contents(partial_);  // of a run that was killed
  } catch (...) {
    discard();
    throw;
  }
}

void AtomicDirectory::check_free() const {
  const fs::path old = replaced(path_);
  if (!is_taken(path_) && is_ours(old)) restore_replaced(path_);
  if (!is_taken(path_)) return;
  if (!replace_)
    throw Error(ErrorKind::kUsage, "the output exists already", path_.string(),
                "choose another place, or replace it with --force");
  if (is_taken(old) && !is_ours(old)) refuse_foreign(old);
}

AtomicDirectory::~AtomicDirectory() { discard(); }

void AtomicDirectory::discard() {
  try {
    if (!committed_) remove_ours(partial_);
  } catch (const std::exception&) {  // it stays until the next writer clears it, unless there is nothing in it
    (void)rmdir(partial_.c_str());
  }
  if (lock_ >= 0) close(lock_);
}

void AtomicDirectory::commit() {
  sync_tree(partial_);
  const bool swap = replace_ && is_taken(path_);
  if (swap)
    swap_in();
  else
    rename_path(partial_, path_);
  committed_ = true;
  sync_directory(parent_of(path_));
  (void)unlinkat(lock_, kMark, 0);  // now that no disk has it as NAME.partial; left there it harms nothing
  if (swap) remove_ours(replaced(path_));
}

// One step where the file system can; else two, with the old one left whole beside it between them.
void AtomicDirectory::swap_in() const {
  const fs::path old = replaced(path_);
  remove_leftover(old);
  if (const int folder = open_folder(path_); folder >= 0) {
    set_mark(folder, path_);
    close(folder);
  }
  if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) return rename_path(partial_, old);
  rename_path(path_, old);
  if (rename(partial_.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  rename(old.c_str(), path_.c_str());
  remove_mark(path_);
  errno = error;
  throw_errno("cannot rename into place", path_);
}

void restore_replaced(const fs::path& path) {
  if (is_taken(path) || !is_taken(replaced(path))) return;
  rename_path(replaced(path), path);
  remove_mark(path);
}

}  // namespace cistron::io
