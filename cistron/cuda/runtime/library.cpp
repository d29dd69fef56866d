#include "cistron/cuda/runtime/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
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
    if (const char* why = handle_ == nullptr ? dlerror() : nullptr) problem_ = why;
  };
  // The first that a named folder holds is the one that is meant: if it doesn't load, no other takes its place.
  const char* folders = std::getenv("CISTRON_CUDA_LIBRARIES");
  const auto open_there = [&](const std::string& folder) {
    const std::string path = folder + "/" + name;
    if (!std::filesystem::exists(path)) return false;
    open(path);
    return true;
  };
  if (folders == nullptr || !any_folder(folders, open_there)) open(name);
}

void* Library::function(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

}  // namespace cistron::cuda
