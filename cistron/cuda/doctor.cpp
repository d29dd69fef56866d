#include "cistron/cuda/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace cistron::cuda {
namespace {

constexpr double kGiB = 1073741824.0;

std::string version(int packed) { return fmt::format("{}.{}", packed / 1000, packed % 1000 / 10); }

Finding examine_card(size_t index, const Card& card) {
  Finding finding{
      .what = fmt::format("card {}", index),
      .found = fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.0f} of {:.0f} GiB free", card.name,
                           card.capability / 10, card.capability % 10, card.multiprocessors,
                           static_cast<double>(card.free_bytes) / kGiB, static_cast<double>(card.memory_bytes) / kGiB)};
  if (card.capability < 80) {
    finding.verdict = Verdict::kMissing;
    finding.advice = "too old, 8.0 or later is wanted: use --device cpu";
  } else if (card.capability == 90) {
    finding.advice = "Hopper's own kernels will be used, in bf16 and MXFP8";
  } else {
    finding.verdict = Verdict::kNote;
    finding.advice = "the portable kernels will be used; MXFP8 is decoded and multiplied in bf16, which saves no time";
  }
  return finding;
}

Finding examine_library(const OptionalLibrary& library) {
  if (library.problem.empty()) return {.what = library.name, .found = "found", .advice = library.found_for};
  return {Verdict::kNote, library.name, "not found",
          fmt::format("{}; to use it, name its folder in CISTRON_CUDA_LIBRARIES ({})", library.instead, library.problem)};
}

Finding examine_driver(const CardSurvey& survey) {
  Finding finding{.what = "CUDA driver", .found = fmt::format("for CUDA {}", version(survey.driver_version))};
  if (survey.driver_version == 0) {
    finding = {Verdict::kMissing, "CUDA driver", "none",
               "install NVIDIA's driver if this machine has a card, and in a container start it with --gpus all"};
  } else if (survey.driver_version / 1000 < survey.runtime_version / 1000) {
    finding.verdict = Verdict::kMissing;
    finding.advice =
        fmt::format("this program was built with CUDA {}: a newer driver is wanted", version(survey.runtime_version));
  }
  return finding;
}

Finding examine_processor() {
  std::string has;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) has += ", AVX2";
  if (__builtin_cpu_supports("avx512f")) has += ", AVX-512";
  const bool bf16 = __builtin_cpu_supports("avx512bf16");
  if (bf16) has += ", bf16 products";
#else
  const bool bf16 = false;
#endif
  return {.verdict = Verdict::kGood,
          .what = "processor",
          .found = fmt::format("{} cores{}", std::thread::hardware_concurrency(), has),
          .advice = bf16 ? "precision.recipe = \"auto\" means bf16 on it" : "precision.recipe = \"auto\" means fp32 on it"};
}

Finding examine_memory() {
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  return {.what = "memory",
          .found = fmt::format("{:.1f} of {:.1f} GiB free", static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * page / kGiB,
                               static_cast<double>(sysconf(_SC_PHYS_PAGES)) * page / kGiB)};
}

}  // namespace

std::vector<Finding> examine(const CardSurvey& survey) {
  if (!survey.built)
    return {{Verdict::kNote, "CUDA", "not in this program",
             "to train on an NVIDIA card: make build-cuda (needs nvcc 12.4 or later)"}};
  std::vector<Finding> findings{examine_driver(survey)};
  if (!survey.problem.empty() && survey.driver_version != 0)
    findings.push_back({Verdict::kMissing, "cards", survey.problem, "nvidia-smi should list a card; see CUDA_VISIBLE_DEVICES"});
  for (size_t i = 0; i < survey.cards.size(); ++i) findings.push_back(examine_card(i, survey.cards[i]));
  for (const OptionalLibrary& library : survey.libraries) findings.push_back(examine_library(library));
  return findings;
}

std::vector<Finding> doctor() {
  std::vector<Finding> findings{examine_processor(), examine_memory()};
  for (Finding& finding : examine(survey_cards())) findings.push_back(std::move(finding));
  return findings;
}

std::string to_text(const std::vector<Finding>& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.what.size());
  std::string text;
  for (const Finding& finding : findings) {
    const char* mark = finding.verdict == Verdict::kGood ? "ok     " : finding.verdict == Verdict::kNote ? "note   " : "missing";
    text += fmt::format("{}  {:<{}}  {}{}{}\n", mark, finding.what, width, finding.found, finding.advice.empty() ? "" : ": ",
                        finding.advice);
  }
  return text;
}

}  // namespace cistron::cuda
