// cistron bench moe: the layer of experts alone, from a loop over experts to the fused grouped MLP.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/moe_ladder.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/model/config.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string preset;
  MoeShape shape{.hidden = 512, .intermediate = 1024, .experts = 8, .top_k = 2, .tokens = 2048};
  bool ablate = false, biases = false;
  int turns = 9;
};

MoeShape shape_of(const Options& o) {
  MoeShape shape = o.shape;
  if (!o.preset.empty()) {
    const auto config = model::preset(o.preset);
    shape.hidden = config.hidden, shape.intermediate = config.intermediate;
    shape.experts = config.experts, shape.top_k = config.top_k;
  }
  if (shape.top_k > shape.experts)
    throw Error(ErrorKind::kUsage, fmt::format("a token cannot choose {} of {} experts", shape.top_k, shape.experts), "--top-k",
                "choose fewer");
  return shape;
}

double rate(double flops, double milliseconds) { return flops / milliseconds / 1e9; }

void print_table(const Ladder& ladder, const MoeShape& s, const std::string& where) {
  fmt::print("experts {} of {} -> {} -> {}, top {}, {} tokens, {}\n", s.experts, s.hidden, s.intermediate, s.hidden, s.top_k,
             s.tokens, where);
  if (ladder.dense_tflops > 0) fmt::print("D {:.0f} TFLOP/s\n", ladder.dense_tflops);
  fmt::print("{:14} {:10} {:>11} {:>9} {:>11} {:>9} {:>12} {:>13} {:>9} {:>6}\n", "variant", "recipe", "forward ms", "TFLOP/s",
             "backward ms", "TFLOP/s", "tokens/s", "saved/token", "launches", "syncs");
  const double flops = s.forward_flops();
  for (const RungTime& t : ladder.rungs) {
    if (!t.refusal.empty()) {
      fmt::print("{:14} {:10} not run: {}\n", t.rung.variant, t.rung.recipe, t.refusal);
      continue;
    }
    fmt::print("{:14} {:10} {:11.3f} {:9.3f} {:11.3f} {:9.3f} {:12.0f} {:13} {:>9} {:>6}\n", t.rung.variant, t.rung.recipe,
               t.forward_milliseconds, rate(flops, t.forward_milliseconds), t.backward_milliseconds,
               rate(2 * flops, t.backward_milliseconds),
               1e3 * static_cast<double>(s.tokens) / (t.forward_milliseconds + t.backward_milliseconds), t.saved_bytes / s.tokens,
               t.launches > 0 ? std::to_string(t.launches) : "-", t.host_syncs);
  }
}

nlohmann::ordered_json to_json(const RungTime& t, const Ladder& ladder, const MoeShape& s, const Device& device) {
  const double flops = s.forward_flops(), total = t.forward_milliseconds + t.backward_milliseconds;
  nlohmann::ordered_json line{{"name", "moe"},
                              {"device", device.is_cuda() ? "cuda" : "cpu"},
                              {"recipe", t.rung.recipe},
                              {"variant", t.rung.variant},
                              {"shape",
                               {{"hidden", s.hidden},
                                {"intermediate", s.intermediate},
                                {"experts", s.experts},
                                {"top_k", s.top_k},
                                {"tokens", s.tokens}}}};
  if (!t.refusal.empty()) {
    line["refused"] = t.refusal;
    return line;
  }
  line["milliseconds"] = total;
  line["forward_milliseconds"] = t.forward_milliseconds;
  line["backward_milliseconds"] = t.backward_milliseconds;
  line["tflops"] = rate(3 * flops, total);
  line["forward_tflops"] = rate(flops, t.forward_milliseconds);
  line["backward_tflops"] = rate(2 * flops, t.backward_milliseconds);
  line["tokens_per_second"] = 1e3 * static_cast<double>(s.tokens) / total;
  line["percent_of_ceiling"] = nullptr;
  if (ladder.dense_tflops > 0) line["percent_of_ceiling"] = 100 * rate(3 * flops, total) / ladder.dense_tflops;
  line["host_syncs"] = t.host_syncs;
  line["launches"] = nullptr;
  if (t.launches > 0) line["launches"] = t.launches;
  line["bytes_saved_per_token"] = t.saved_bytes / s.tokens;
  return line;
}

int run_bench_moe(const Options& o) {
  const MoeShape shape = shape_of(o);
  const Device device = choose_device(o);
  ThreadPool pool(o.threads);
  const Ladder ladder = climb(device, pool, shape, rungs_of(device, o.ablate, o.biases), o.turns);
  if (!o.json) print_table(ladder, shape, device.is_cuda() ? to_string(device) : fmt::format("{} threads", pool.num_threads()));
  for (const RungTime& t : ladder.rungs)
    if (o.json) fmt::print("{}", json_line(to_json(t, ladder, shape, device)));
  return kDone;
}

}  // namespace

void add_bench_moe(CLI::App& bench, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb =
      add_verb(bench, "moe", "The layer of experts alone, forward and backward: grouped, in MXFP8, fused",
               "cistron bench moe --hidden 2048 --intermediate 1024 --experts 64 --top-k 8 --tokens 16384 --ablate", *o);
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  verb->add_option("--preset", o->preset, "The model's shape, instead of the next four");
  verb->add_option("--hidden", o->shape.hidden, "Width of the layer")->check(positive)->capture_default_str();
  verb->add_option("--intermediate", o->shape.intermediate, "Width of an expert")->check(positive)->capture_default_str();
  verb->add_option("--experts", o->shape.experts, "Experts")->check(positive)->capture_default_str();
  verb->add_option("--top-k", o->shape.top_k, "Experts of a token")->check(positive)->capture_default_str();
  verb->add_option("--tokens", o->shape.tokens, "Tokens")->check(positive)->capture_default_str();
  verb->add_flag("--ablate", o->ablate, "The way there too: a loop over experts, grouped products, the same in MXFP8");
  verb->add_flag("--biases", o->biases, "Each but the loop once more, with biases of gate, up and down");
  verb->add_option("--turns", o->turns, "Turns that are timed; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  verb->callback([o, &run] { run = [o] { return run_bench_moe(*o); }; });
}

}  // namespace cistron::apps
