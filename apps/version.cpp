#include "apps/version.h"

#include <fmt/format.h>

#include <vector>

#include "cistron/cpu/fast/onednn.h"

namespace cistron::apps {

namespace {

std::vector<std::string> processor_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  const auto add = [&](bool present, const char* name) {
    if (present) features.emplace_back(name);
  };
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bf16") != 0, "avx512_bf16");
#endif
  if (cpu::has_fast_bf16()) features.emplace_back("fast bf16");
  return features;
}

}  // namespace

std::string version_text() {
  return fmt::format("cistron {}\nbackends: cpu, meta\nprocessor: {}", CISTRON_VERSION, fmt::join(processor_features(), ", "));
}

}  // namespace cistron::apps
