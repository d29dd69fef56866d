#include "cistron/core/current_error.h"

#include <filesystem>
#include <new>
#include <system_error>

namespace cistron {

namespace {

ErrorKind kind_of(const std::error_code& code) {
  const bool name = code == std::errc::filename_too_long || code == std::errc::too_many_symbolic_link_levels;
  if (name) return ErrorKind::kUsage;
  const bool full = code == std::errc::no_space_on_device || code == std::errc::file_too_large;
  return full ? ErrorKind::kOutOfSpace : ErrorKind::kFailed;
}

}  // namespace

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kOutOfSpace, "out of memory", "host", "use a smaller model or batch"};
  } catch (const std::filesystem::filesystem_error& error) {
    return {kind_of(error.code()), "cannot reach the file", error.path1().string(), error.code().message()};
  } catch (const std::system_error& error) {
    return {kind_of(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {ErrorKind::kFailed, error.what()};
  } catch (...) {
    return {ErrorKind::kFailed, "something was thrown that is no exception"};
  }
}

}  // namespace cistron
