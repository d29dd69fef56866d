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
  /// TensorBoard drops what earlier files of the directory say of `first_step` and later ones, which a resumed run writes again.
  explicit EventWriter(const std::filesystem::path& directory, int64_t first_step = 1);
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  /// Buffered; `wall_time` is in seconds since 1970, 0 for now.
  void scalar(std::string_view tag, int64_t step, double value, double wall_time = 0);
  void flush();
  /// Flushes to the disk.
  void sync();
  ~EventWriter();

 private:
  void append(std::string_view event);
  FileWriter file_;
  std::string buffer_;
};

}  // namespace cistron::io
