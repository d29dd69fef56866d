#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "cistron/io/atomic_file.h"

namespace cistron::io {

/// Scalars for TensorBoard: `events.out.tfevents.<seconds>.<host>.<pid>` in a directory. A TFRecord is u64 length, its masked
/// CRC-32C, a protobuf `Event`, its masked CRC-32C.
class EventWriter {
 public:
  explicit EventWriter(const std::filesystem::path& directory);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// Buffered; `wall_time` is in seconds since 1970, 0 for now.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time = 0);
  void flush();
  ~EventWriter();

 private:
  void append(std::string_view event);
  FileWriter file_;
  std::string buffer_;
};

}  // namespace cistron::io
