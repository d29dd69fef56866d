#pragma once
// What the fuzz targets share. A target is one file here: LLVMFuzzerTestOneInput hands its parser some bytes, which must be taken
// or refused by an Error; anything else that is thrown ends the program, as a sanitizer's finding does. Built by clang
// (-DCISTRON_FUZZ=ON) it is a libFuzzer program; in `make test` replay.cpp runs it over corpus/TARGET. docs/robustness.md.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cistron/core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace cistron::fuzz {

/// A folder, in memory where there is such a place, whose files get other contents for every input.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    const bool there = access(memory.c_str(), W_OK) == 0;
    std::string name = ((there ? memory : std::filesystem::temp_directory_path()) / "cistron-fuzz-XXXXXX").string();
    CISTRON_CHECK(mkdtemp(name.data()) != nullptr, "[fuzz] cannot make {}", name);
    path_ = name;
  }
  ~Folder() {
    for (const auto& [name, file] : files_) close(file.fd);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// The file `name`, which may be in a folder within, now holds `bytes`. Gives its path.
  std::filesystem::path write(const std::string& name, std::string_view bytes) {
    const std::filesystem::path path = path_ / name;
    File& file = files_[name];
    if (file.fd < 0) {
      std::filesystem::create_directories(path.parent_path());
      file.fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    }
    if (file.holds == bytes) return path;  // most parts of an input are its parent's
    const bool written = pwrite(file.fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()) &&
                         ftruncate(file.fd, static_cast<off_t>(bytes.size())) == 0;
    CISTRON_CHECK(written, "[fuzz] cannot write {}", path.string());
    file.holds = bytes;
    return path;
  }

 private:
  struct File {
    int fd = -1;
    std::string holds;
  };
  std::filesystem::path path_;
  std::map<std::string, File> files_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

/// An input of several files: its parts between lines of "%%".
inline std::vector<std::string> parts_of(std::string_view input, size_t count) {
  constexpr std::string_view kBetween = "\n%%\n";
  std::vector<std::string> parts;
  while (parts.size() + 1 < count) {
    const size_t end = input.find(kBetween);
    parts.emplace_back(input.substr(0, end));
    input = end == std::string_view::npos ? std::string_view() : input.substr(end + kBetween.size());
  }
  parts.emplace_back(input);
  return parts;
}

inline std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (&part == &parts.front() ? "" : "\n%%\n") + part;
  return all;
}

/// Whether `act` went through; false where it refused its input, by an error of this kind.
template <class Act>
bool accepts(ErrorKind refusal, const Act& act) {
  try {
    act();
    return true;
  } catch (const Error& error) {
    if (error.kind() != refusal) throw;
    return false;
  }
}

}  // namespace cistron::fuzz
