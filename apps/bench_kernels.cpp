// cistron bench kernels: the kernels of an expert MLP, each alone, beside their peers and their ceiling.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "cistron/core/error.h"
#include "cistron/cuda/bench/kernels.h"
#include "cistron/model/config.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string preset, only, gemm = "auto";
  int64_t hidden = 4096, intermediate = 14336, experts = 8, top_k = 2, tokens = 8192;
  int turns = 9;
};

cuda::KernelBench bench_of(Options o) {
  if (!o.preset.empty()) {
    const auto config = model::preset(o.preset);
    o.hidden = config.hidden, o.intermediate = config.intermediate, o.experts = config.experts, o.top_k = config.top_k;
  }
  return {.hidden = o.hidden,
          .intermediate = o.intermediate,
          .experts = o.experts,
          .rows = o.tokens * o.top_k,
          .only = o.only,
          .gemm = o.gemm == "portable" ? GemmKernels::kPortable : GemmKernels::kAuto,
          .turns = o.turns};
}

void print_line(const cuda::KernelTime& t) {
  const std::string ceiling =
      t.ceiling > 0 ? fmt::format("{:.3f} {}", t.rate / t.ceiling, t.moves_bytes ? "C" : "D") : "no cuBLASLt: no D";
  fmt::print("{:10} {:28} {:14} {:9.4f} ms {:7.1f} {}  {}{}\n", t.recipe, t.name, t.variant, t.milliseconds, t.rate,
             t.moves_bytes ? "GB/s" : "TFLOP/s", ceiling,
             t.moves_bytes ? "" : fmt::format("  error {:.1e}{}", t.error, t.right ? "" : " WRONG"));
}

void print_json(const cuda::KernelTime& t, const cuda::KernelBench& b) {
  nlohmann::ordered_json line{
      {"name", t.name},
      {"device", "cuda"},
      {"recipe", t.recipe},
      {"variant", t.variant},
      {"shape", {{"hidden", b.hidden}, {"intermediate", b.intermediate}, {"experts", b.experts}, {"rows", b.rows}}},
      {"milliseconds", t.milliseconds}};
  line[t.moves_bytes ? "gigabytes_per_second" : "tflops"] = t.rate;
  line["percent_of_ceiling"] = t.ceiling > 0 ? nlohmann::ordered_json(100 * t.rate / t.ceiling) : nullptr;
  line["ceiling"] = t.ceiling > 0 ? nlohmann::ordered_json(t.ceiling) : nullptr;
  line["error"] = t.moves_bytes ? nullptr : nlohmann::ordered_json(t.error);
  line["tokens_per_second"] = nullptr;
  line["host_syncs"] = 0;
  line["launches"] = t.variant == "cublaslt loop" ? b.experts : 1;
  line["bytes_saved_per_token"] = nullptr;
  fmt::print("{}\n", line.dump());
}

int run_bench_kernels(const Options& o) {
  if (o.device == "cpu")
    throw Error(ErrorKind::kUsage, "bench kernels times CUDA kernels", "--device cpu",
                "for a processor's kernels, kernel_benchmarks (CONTRIBUTING.md)");
  const auto bench = bench_of(o);
  bool right = true;
  cuda::bench_kernels(bench, [&](const cuda::KernelTime& t) {
    o.json ? print_json(t, bench) : print_line(t);
    std::fflush(stdout);
    right &= t.right;
  });
  if (!right) throw Error(ErrorKind::kFailed, "a kernel's results are wrong", "bench kernels", "report this");
  return kDone;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb =
      add_verb(bench, "kernels", "A card's kernels of an expert MLP, each alone, beside their peers and their ceiling",
               "cistron bench kernels --hidden 2048 --intermediate 1024 --experts 64 --top-k 8 --tokens 16384", *o);
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  verb->add_option("--preset", o->preset, "The model's shape, instead of the next four");
  verb->add_option("--hidden", o->hidden, "Width of the layer")->check(positive)->capture_default_str();
  verb->add_option("--intermediate", o->intermediate, "Width of an expert")->check(positive)->capture_default_str();
  verb->add_option("--experts", o->experts, "Experts")->check(positive)->capture_default_str();
  verb->add_option("--top-k", o->top_k, "Experts of a token")->check(positive)->capture_default_str();
  verb->add_option("--tokens", o->tokens, "Tokens")->check(positive)->capture_default_str();
  verb->add_option("--only", o->only, "Kernels whose recipe and name contain this: \"bf16 fc1\", mxfp8/128, quantise");
  verb->add_option("--gemm", o->gemm, "auto, or portable: the kernels of every card since compute capability 8.0")
      ->check(CLI::IsMember({"auto", "portable"}))
      ->capture_default_str();
  verb->add_option("--turns", o->turns, "Turns that are timed; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->callback([o, &run] { run = [o] { return run_bench_kernels(*o); }; });
}

}  // namespace cistron::apps
