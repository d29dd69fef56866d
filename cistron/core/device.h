#pragma once
#include <string>

namespace cistron {

enum class DeviceKind : unsigned char {
  kCpu,
  kMeta,  ///< shapes without bytes: running a step on it plans the memory of a real one
  kCuda,
};

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;

  [[nodiscard]] bool is_cpu() const { return kind == DeviceKind::kCpu; }
  [[nodiscard]] bool is_meta() const { return kind == DeviceKind::kMeta; }
  [[nodiscard]] bool is_cuda() const { return kind == DeviceKind::kCuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

std::string to_string(const Device& device);

}  // namespace cistron
