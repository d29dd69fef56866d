#include "apps/bench_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "cistron/core/bf16.h"
#include "cistron/core/rng.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/matmul.h"
#include "cistron/ops/queue.h"

namespace cistron::apps {

namespace {

double median_milliseconds(ops::Queue& queue, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const double time = queue.milliseconds(work);
    if (i >= 3) times.push_back(time);
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

// A million random values, over and over: more than any tile or cache line would notice.
void fill_random(Context& ctx, const Tensor& matrix, uint64_t stream) {
  const Rng rng(1, stream);
  std::vector<bf16> values(size_t{1} << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = bf16(static_cast<float>(rng.uniform(i) - 0.5));
  const std::span pattern = std::as_bytes(std::span(values));
  ops::write_pieces(ctx, matrix, [&](int64_t begin, std::span<std::byte> piece) {
    for (size_t at = 0; at < piece.size();) {
      const size_t from = (static_cast<size_t>(begin) + at) % pattern.size();
      const size_t size = std::min(pattern.size() - from, piece.size() - at);
      std::memcpy(piece.data() + at, pattern.data() + from, size);
      at += size;
    }
  });
}

}  // namespace

Ceilings measure_ceilings(const Device& device) {
  constexpr int64_t kSide = 8192, kCopied = int64_t{1} << 30;
  const auto queue = ops::make_queue(device);
  Context ctx{.device = device,
              .arena = Arena::growing("ceilings", device, ops::device_memory(device)),
              .stream = queue->stream(),
              .precision = Precision::kBF16};
  const Tensor x = ctx.empty({kSide, kSide}), w = ctx.empty({kSide, kSide}), out = ctx.empty({kSide, kSide});
  fill_random(ctx, x, 0);
  fill_random(ctx, w, 1);
  const Tensor from = ctx.empty({kCopied}, DType::kU8), to = ctx.empty({kCopied}, DType::kU8);
  const double product = median_milliseconds(*queue, [&] { ops::matmul_forward(ctx, {.x = x, .w = w, .out = out}); });
  const double copy = median_milliseconds(*queue, [&] { ops::copy(ctx, {.x = from, .out = to}); });
  return {.tflops = 2e-9 * kSide * kSide * kSide / product, .gigabytes_per_second = 2e-6 * kCopied / copy};
}

std::vector<ProfileRow> summarise(const std::vector<ops::TimedOperation>& operations, const Ceilings& ceilings, double pairs) {
  struct Sums {
    int64_t calls = 0;
    double milliseconds = 0.0, flops = 0.0, bytes = 0.0;
  };
  std::map<std::string, Sums> by_name;
  double whole = 0.0;
  for (const auto& [op, milliseconds, cost] : operations) {
    Sums& sums = by_name[op];
    ++sums.calls;
    sums.milliseconds += milliseconds;
    sums.flops += cost.flops + cost.pair_flops * pairs;
    sums.bytes += cost.bytes;
    whole += milliseconds;
  }
  std::vector<ProfileRow> rows;
  for (const auto& [op, sums] : by_name) {
    ProfileRow row{.op = op, .calls = sums.calls, .milliseconds = sums.milliseconds, .share = sums.milliseconds / whole};
    if (ceilings.tflops > 0) {
      const double by_products = sums.flops / ceilings.tflops / 1e9, by_bytes = sums.bytes / ceilings.gigabytes_per_second / 1e6;
      row.ratio = std::max(by_products, by_bytes) / sums.milliseconds;
      if (row.ratio > 0) row.ceiling = by_products > by_bytes ? 'D' : 'C';
    }
    rows.push_back(row);
  }
  std::ranges::sort(rows, std::greater(), &ProfileRow::milliseconds);
  return rows;
}

void print_profile(const std::vector<ProfileRow>& rows, bool json) {
  double whole = 0.0;
  for (const auto& row : rows) whole += row.milliseconds;
  if (!json) fmt::print("{:<24} {:>6} {:>10} {:>7} {:>9}\n", "operation", "calls", "ms", "share", "of D or C");
  for (const auto& row : rows) {
    if (json) {
      nlohmann::ordered_json line{{"name", "train/" + row.op}, {"calls", row.calls}, {"milliseconds", row.milliseconds},
                                  {"share", row.share},        {"ratio", nullptr},   {"ceiling", nullptr}};
      if (row.ratio > 0) line["ratio"] = row.ratio, line["ceiling"] = std::string(1, row.ceiling);
      fmt::print("{}\n", line.dump());
    } else {
      const std::string ratio = row.ratio > 0 ? fmt::format("{:.2f} {}", row.ratio, row.ceiling) : "";
      fmt::print("{:<24} {:>6} {:>10.3f} {:>6.1f}% {:>9}\n", row.op, row.calls, row.milliseconds, 100 * row.share, ratio);
    }
  }
  if (!json) fmt::print("{:<24} {:>6} {:>10.3f}\n", "sum", "", whole);
}

}  // namespace cistron::apps
