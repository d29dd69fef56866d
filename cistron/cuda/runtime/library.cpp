#include "cistron/cuda/runtime/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

namespace cistron::cuda {
namespace {

/// f(folder) until it is true.
template <class F>
bool any_folder(std::string_view folders, F&& f) {
  while (!folders.empty()) {
    const size_t end = folders.find(':');
    if (const std::string_view folder = folders.substr(0, end); !folder.empty() && f(std::string(folder))) return true;
    folders = end == std::string_view::npos ? std::string_view() : folders.substr(end + 1);
  }
  return false;
}

}  // namespace

Library::Library(const std::string& name) {
  const auto open = [&](const std::string& path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return handle_ != nullptr;
  };
  const char* folders = std::getenv("CISTRON_CUDA_LIBRARIES");
  if (folders != nullptr && any_folder(folders, [&](const std::string& folder) { return open(folder + "/" + name); })) return;
  if (open(name)) return;
  if (const char* why = dlerror()) problem_ = why;
}

void* Library::function(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

}  // namespace cistron::cuda
