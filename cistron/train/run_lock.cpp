#include "cistron/train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"

namespace cistron::train {

RunLock::RunLock(const std::filesystem::path& run) {
  const auto file = run / kName;
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) io::throw_errno("cannot open the run's lock", file);
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  ::close(fd_);
  if (error == EWOULDBLOCK)
    throw Error(ErrorKind::kUsage, "another process is training this run", run.string(),
                "wait for it or stop it, or give another --out");
  errno = error;
  io::throw_errno("cannot lock the run", file);
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace cistron::train
