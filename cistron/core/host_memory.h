#pragma once
#include <cstdint>
#include <string_view>

namespace cistron {

/// Bytes of host memory that this process can still take: what the kernel calls available, within the limits of its control
/// groups (v2) and its own (ulimit -v, -d). Linux hands out more than it has and then kills, so whoever plans asks first.
/// INT64_MAX where the system does not say.
int64_t available_host_memory();

/// Throws Error(kOutOfSpace) where `bytes` are more than that.
void require_host_memory(int64_t bytes, std::string_view advice);

}  // namespace cistron
