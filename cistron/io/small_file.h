#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cistron::io {

/// The whole of a regular file of at most `most` bytes. Throws, naming it: Error(kBadData) where there is none, where it is
/// another kind of file (a pipe is never waited for) or a longer one, else Error(kFailed).
std::string read_small_file(const std::filesystem::path& path, int64_t most = int64_t{16} << 20);

/// What is in a folder, sorted; nothing where there is no folder. Throws Error(kFailed), naming it, where it cannot be listed.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

}  // namespace cistron::io
