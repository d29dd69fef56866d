#include "apps/bench_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

/// `queue`: null where work is done when it returns.
double median_milliseconds(ops::Queue* queue, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int i = 0; i < 12; ++i) {
    const auto start = Clock::now();
    const double on_device = queue != nullptr ? queue->milliseconds(work) : (work(), 0.0);
    const std::chrono::duration<double, std::milli> on_host = Clock::now() - start;
    if (i >= 3) times.push_back(queue != nullptr ? on_device : on_host.count());
  }
  return median_of(times);
}

template <class T>
void fill_with(Context& ctx, const Tensor& out, uint64_t stream, double middle, double width) {
  const Rng rng(1, stream);
  std::vector<T> values(size_t{1} << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = T(static_cast<float>(middle + width * (rng.uniform(i) - 0.5)));
  const std::span pattern = std::as_bytes(std::span(values));
  ops::write_pieces(ctx, out, [&](int64_t begin, std::span<std::byte> piece) {
    for (size_t at = 0; at < piece.size();) {
      const size_t from = (static_cast<size_t>(begin) + at) % pattern.size();
      const size_t size = std::min(pattern.size() - from, piece.size() - at);
      std::memcpy(piece.data() + at, pattern.data() + from, size);
      at += size;
    }
  });
}

Tensor random_matrix(Context& ctx, int64_t side, uint64_t stream) {
  const Tensor matrix = ctx.empty({side, side});
  fill_random(ctx, matrix, stream);
  return matrix;
}

// On a CPU by all its threads.
void copy_all(Context& ctx, const Tensor& from, const Tensor& to) {
  if (!ctx.device.is_cpu()) return ops::copy(ctx, {.x = from, .out = to});
  constexpr int64_t kPiece = int64_t{1} << 20;
  ctx.parallel_for(from.bytes() / kPiece,
                   [&](int64_t i) { std::memcpy(to.data<uint8_t>() + i * kPiece, from.data<uint8_t>() + i * kPiece, kPiece); });
}

struct Sums {
  int64_t calls = 0;
  double milliseconds = 0.0, flops = 0.0, bytes = 0.0;
};

ProfileRow row_of(const std::string& op, const Sums& sums, const Ceilings& ceilings) {
  ProfileRow row{.op = op, .calls = sums.calls, .milliseconds = sums.milliseconds};
  const double by_products = sums.flops / ceilings.tflops / 1e9, by_bytes = sums.bytes / ceilings.gigabytes_per_second / 1e6;
  row.ratio = std::max(by_products, by_bytes) / sums.milliseconds;
  if (row.ratio == 0) return row;
  row.ceiling = by_products > by_bytes ? 'D' : 'C';
  (row.ceiling == 'D' ? row.tflops : row.gigabytes_per_second) =
      row.ceiling == 'D' ? sums.flops / sums.milliseconds / 1e9 : sums.bytes / sums.milliseconds / 1e6;
  return row;
}

std::string rate_of(const ProfileRow& row) {
  if (row.ceiling == 'D') return fmt::format("{:.3f} TFLOP/s", row.tflops);
  if (row.ceiling == 'C') return fmt::format("{:.1f} GB/s", row.gigabytes_per_second);
  return "";
}

}  // namespace

double median_of(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

void fill_random(Context& ctx, const Tensor& out, uint64_t stream, double middle, double width) {
  out.dtype() == DType::kBF16 ? fill_with<bf16>(ctx, out, stream, middle, width)
                              : fill_with<float>(ctx, out, stream, middle, width);
}

DenseProduct::DenseProduct(const Context& ctx, int64_t side) : ctx_(ctx), side_(side) {
  const int64_t bytes = 3 * side * side * size_of(ctx.activation_dtype());
  ctx_.arena = Arena::planned("dense product", ctx.device, ops::device_memory(ctx.device),
                              bytes + (ctx.device.is_cpu() ? 0 : ops::kDenseWorkspaceBytes));
  x_ = random_matrix(ctx_, side, 0);
  w_ = random_matrix(ctx_, side, 1);
  out_ = ctx_.empty({side, side});
}

void DenseProduct::run() { ops::matmul_forward(ctx_, {.x = x_, .w = w_, .out = out_}); }

double DenseProduct::tflops(double milliseconds) const {
  const auto side = static_cast<double>(side_);
  return 2e-9 * side * side * side / milliseconds;
}

Ceilings measure_ceilings(const Device& device, Precision precision, ThreadPool* pool) {
  const int64_t side = device.is_cpu() ? 2048 : 8192, copied = int64_t{1} << (device.is_cpu() ? 28 : 30);
  const auto queue = ops::make_queue(device);
  Context ctx{.device = device,
              .arena = Arena::growing("ceilings", device, ops::device_memory(device)),
              .pool = pool,
              .stream = queue == nullptr ? nullptr : queue->stream(),
              .precision = device.is_cpu() && precision == Precision::kF32 ? Precision::kF32 : Precision::kBF16};
  DenseProduct dense(ctx, side);
  const Tensor from = ctx.empty({copied}, DType::kU8), to = ctx.empty({copied}, DType::kU8);
  const double product = median_milliseconds(queue.get(), [&] { dense.run(); });
  const double copy = median_milliseconds(queue.get(), [&] { copy_all(ctx, from, to); });
  return {.tflops = dense.tflops(product), .gigabytes_per_second = 2e-6 * static_cast<double>(copied) / copy};
}

std::vector<ProfileRow> summarise(const std::vector<std::vector<ops::TimedOperation>>& steps, const Ceilings& ceilings,
                                  double pairs) {
  std::map<std::string, Sums> by_name;
  double whole = 0.0;
  for (size_t i = 0; i < steps.front().size(); ++i) {
    std::vector<double> times;
    for (const auto& step : steps) times.push_back(step.at(i).milliseconds);
    const auto& [op, _, cost] = steps.front()[i];
    Sums& sums = by_name[op];
    ++sums.calls;
    sums.milliseconds += median_of(times);
    sums.flops += cost.flops + cost.pair_flops * pairs;
    sums.bytes += cost.bytes;
    whole += median_of(times);
  }
  std::vector<ProfileRow> rows;
  for (const auto& [op, sums] : by_name) {
    rows.push_back(row_of(op, sums, ceilings));
    rows.back().share = sums.milliseconds / whole;
  }
  std::ranges::sort(rows, std::greater(), &ProfileRow::milliseconds);
  return rows;
}

void print_profile(const std::vector<ProfileRow>& rows, bool json) {
  double whole = 0.0;
  for (const auto& row : rows) whole += row.milliseconds;
  if (!json) fmt::print("{:<24} {:>6} {:>10} {:>7} {:>15} {:>9}\n", "operation", "calls", "ms", "share", "rate", "of D or C");
  for (const auto& row : rows) {
    if (json) {
      nlohmann::ordered_json line{{"name", "train/" + row.op}, {"calls", row.calls}, {"milliseconds", row.milliseconds},
                                  {"share", row.share},        {"tflops", nullptr},  {"gigabytes_per_second", nullptr},
                                  {"ratio", nullptr},          {"ceiling", nullptr}};
      if (row.ratio > 0) line["ratio"] = row.ratio, line["ceiling"] = std::string(1, row.ceiling);
      if (row.ceiling == 'D') line["tflops"] = row.tflops;
      if (row.ceiling == 'C') line["gigabytes_per_second"] = row.gigabytes_per_second;
      fmt::print("{}\n", line.dump());
    } else {
      const std::string ratio = row.ratio > 0 ? fmt::format("{:.2f} {}", row.ratio, row.ceiling) : "";
      fmt::print("{:<24} {:>6} {:>10.3f} {:>6.1f}% {:>15} {:>9}\n", row.op, row.calls, row.milliseconds, 100 * row.share,
                 rate_of(row), ratio);
    }
  }
  if (!json) fmt::print("{:<24} {:>6} {:>10.3f}\n", "sum", "", whole);
}

}  // namespace cistron::apps
