// A target over files of its corpus, without a fuzzer. Usage: TARGET FILE-OR-FOLDER...
#include <fmt/format.h>

#include <exception>
#include <fstream>
#include <iterator>

#include "tests/fuzz/support.h"

namespace {

namespace fs = std::filesystem;

void run(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", file.string(), error.what());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc)) {
    if (!fs::is_directory(argument))
      files.emplace_back(argument);
    else
      for (const auto& entry : fs::directory_iterator(argument)) files.push_back(entry.path());
  }
  for (const fs::path& file : files) run(file);
  fmt::print("{} inputs\n", files.size());
  return files.empty() ? 1 : 0;
}
