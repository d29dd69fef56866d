#pragma once
// NVIDIA's libraries, found at run time, so that programs start without them: first in the folders that the environment variable
// CISTRON_CUDA_LIBRARIES names (separated by colons), then where the system's loader looks.
#include <string>

namespace cistron::cuda {

/// A shared library, open for as long as the program runs. Never throws.
class Library {
 public:
  /// `name`: "libcublasLt.so.13"
  explicit Library(const std::string& name);
  [[nodiscard]] bool found() const { return handle_ != nullptr; }
  /// The loader's words, where it is not found.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Null where the library has no such function.
  [[nodiscard]] void* function(const char* name) const;

 private:
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace cistron::cuda
