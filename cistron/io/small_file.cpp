#include "cistron/io/small_file.h"

#include <algorithm>
#include <cerrno>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/mapped_file.h"

namespace cistron::io {

namespace fs = std::filesystem;

std::string read_small_file(const fs::path& path, int64_t most) {
  const MappedFile file(path);
  if (std::ssize(file.bytes()) > most)
    throw Error(ErrorKind::kBadData, fmt::format("a file of {} bytes, where at most {} make sense", file.bytes().size(), most),
                path.string(), "is it the right file?");
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    all.push_back(entry->path());
  if (error && error != std::errc::no_such_file_or_directory) {
    errno = error.value();
    throw_errno("cannot list the folder", folder);
  }
  std::ranges::sort(all);
  return all;
}

}  // namespace cistron::io
