#include "cistron/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/system_call.h"

namespace cistron::train {

namespace {

bool has_no_locks(int error) { return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK; }

}  // namespace

RunLock::RunLock(std::filesystem::path run) : run_(std::move(run)) {
  const auto file = run_ / kName;
  fd_ = io::uninterrupted([&] { return ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666); });
  if (fd_ < 0) io::throw_errno("cannot open the run's lock", file);
  held_ = io::uninterrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0;
  const int error = errno;
  if (held_ || has_no_locks(error)) return;
  ::close(fd_);
  if (error == EWOULDBLOCK)
    throw Error(ErrorKind::kUsage, "another process is training this run", run_.string(),
                "wait for it or stop it, or give another --out");
  errno = error;
  io::throw_errno("cannot lock the run", file);
}

RunLock::~RunLock() { ::close(fd_); }

void RunLock::check() const {
  struct stat mine{}, there{};
  if (::fstat(fd_, &mine) != 0) io::throw_errno("cannot look at the run's lock", run_ / kName);
  const bool found = ::stat((run_ / kName).c_str(), &there) == 0;
  if (!found && errno != ENOENT && errno != ENOTDIR) io::throw_errno("cannot look at the run's lock", run_ / kName);
  if (found && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino) return;
  throw Error(ErrorKind::kFailed, "the run was removed, renamed or replaced while it was trained", run_.string(),
              "nothing more was written there; where it was renamed, --resume goes on from its last checkpoint");
}

}  // namespace cistron::train
