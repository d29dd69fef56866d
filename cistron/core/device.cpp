#include "cistron/core/device.h"

namespace cistron {

std::string to_string(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kMeta:
      return "meta";
    case DeviceKind::kCuda:
      return "cuda:" + std::to_string(device.index);
  }
  return "?";
}

}  // namespace cistron
