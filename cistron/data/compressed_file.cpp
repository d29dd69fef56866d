#include "cistron/data/compressed_file.h"

#include <fcntl.h>
#include <htslib/bgzf.h>
#include <htslib/hts_log.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/system_call.h"

namespace cistron::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view what, std::string_view advice) {
  throw Error(ErrorKind::kBadData, what, path.string(), advice);
}

BGZF* open_file(const std::filesystem::path& path) {
  hts_set_log_level(HTS_LOG_OFF);  // what it would say is in our errors
  const int fd = io::uninterrupted([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (fd < 0 && (errno == EACCES || errno == EPERM || errno == EIO)) io::throw_errno("cannot open the file", path);
  if (fd < 0) refuse(path, "cannot open the file", std::generic_category().message(errno));
  struct stat info{};
  const bool is_directory = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  errno = 0;
  BGZF* file = is_directory ? nullptr : bgzf_dopen(fd, "r");
  if (file != nullptr) return file;
  const bool no_memory = errno == ENOMEM;
  close(fd);
  if (no_memory) throw std::bad_alloc();
  refuse(path, "cannot read the file", is_directory ? "it is a directory; name the files in it" : "it is damaged or cut short");
}

}  // namespace

struct CompressedFile::Handle {
  BGZF* file;
  explicit Handle(const std::filesystem::path& path) : file(open_file(path)) {}
  ~Handle() {
    if (bgzf_close(file) != 0) return;  // read only: nothing is lost
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

CompressedFile::CompressedFile(std::filesystem::path path) : path_(std::move(path)), handle_(std::make_unique<Handle>(path_)) {}
CompressedFile::~CompressedFile() = default;
CompressedFile::CompressedFile(CompressedFile&&) noexcept = default;

size_t CompressedFile::read(std::span<char> buffer) {
  BGZF* file = handle_->file;
  const ssize_t size = bgzf_read(file, buffer.data(), buffer.size());
  if (size < 0) refuse(path_, "the compressed file is damaged or cut short", "get a whole copy of it (gzip -t tells)");
  if (size == 0 && file->is_compressed && !file->is_gzip && file->no_eof_block)
    refuse(path_, "the bgzip file lacks its end block, so it is probably cut short",
           "get a whole copy of it, or compress it again if it is whole");
  return static_cast<size_t>(size);
}

}  // namespace cistron::data
