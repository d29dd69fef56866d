#include "cistron/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "cistron/io/mapped_file.h"
#include "cistron/io/system_call.h"

namespace cistron::train {

namespace fs = std::filesystem;

namespace {

using Number = std::pair<const char*, double>;

// nlohmann writes numbers that are not finite as null, as the interface wants.
std::string to_line(int64_t step, std::initializer_list<std::pair<const char*, int64_t>> counts,
                    const std::vector<Number>& numbers) {
  nlohmann::ordered_json line{{"step", step}};
  for (const auto& [name, value] : counts) line[name] = value;
  for (const auto& [name, value] : numbers) line[name] = value;
  return line.dump() + "\n";
}

constexpr size_t kLongestLine = 65536;  // ours have some hundred bytes

// The step that a line is of; -1 for a line that is not ours: torn, or altered.
int64_t step_of(const nlohmann::json& line) {
  const auto step = line.is_object() ? line.find("step") : line.end();
  if (step == line.end() || !step->is_number_integer()) return -1;
  if (step->is_number_unsigned() && step->get<uint64_t>() > uint64_t{INT64_MAX}) return -1;
  return step->get<int64_t>();
}

// Calls `visit(text, line, step)` for each line that is ours. False where there is no file.
template <class Visit>
bool each_line(const fs::path& file, Visit&& visit) {
  if (!io::is_reachable(file)) return false;
  const io::MappedFile mapped(file);
  std::string_view rest(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  while (!rest.empty()) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    if (text.size() > kLongestLine) continue;
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (const int64_t step = step_of(line); step >= 0) visit(text, line, step);
  }
  return true;
}

void truncate_to(const fs::path& file, int64_t last_step) {
  std::string kept;
  const bool is_there = each_line(file, [&](std::string_view text, const auto&, int64_t step) {
    if (step <= last_step) kept.append(text) += '\n';
  });
  if (is_there) io::write_file(file, kept);
}

}  // namespace

double ValidationMetrics::perplexity() const { return std::exp(loss); }

double ValidationMetrics::bits_per_token() const { return loss / std::numbers::ln2; }

RecordedStep recorded_step(const fs::path& run, int64_t wanted) {
  RecordedStep recorded;
  recorded.is_there = each_line(run / "metrics.jsonl", [&](std::string_view, const nlohmann::json& line, int64_t step) {
    const auto number = [&](const char* key) { return line.contains(key) && line[key].is_number(); };
    recorded.last_step = std::max(recorded.last_step, step);
    if (step != wanted) return;
    if (number("loss")) recorded.loss = line["loss"];
    if (!number("valid_loss") || !number("valid_tokens") || !line["valid_tokens"].is_number_unsigned()) return;
    if (const auto tokens = line["valid_tokens"].get<uint64_t>(); tokens <= uint64_t{INT64_MAX})
      recorded.validation = {.step = step, .loss = line["valid_loss"], .tokens = static_cast<int64_t>(tokens)};
  });
  return recorded;
}

Metrics::Metrics(const fs::path& run, int64_t last_step, const RunLock* lock)
    : file_(run / "metrics.jsonl"), lock_(lock), events_(run, last_step + 1) {
  truncate_to(file_, last_step);
  fd_ = io::uninterrupted([&] { return ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666); });
  if (fd_ < 0) io::throw_errno("cannot open the metrics", file_);
  io::sync_directory(run);  // both files are there to stay
}

Metrics::~Metrics() { ::close(fd_); }

void Metrics::append(const std::string& line) {
  if (lock_ != nullptr) lock_->check();
  const auto put = [&](std::span<const std::byte> rest) { return ::write(fd_, rest.data(), rest.size()); };
  if (!io::put_all(std::as_bytes(std::span(line)), put)) io::throw_errno("cannot write the metrics", file_);
}

void Metrics::sync() {
  if (io::uninterrupted([&] { return ::fsync(fd_); }) != 0) io::throw_errno("cannot sync the metrics", file_);
  events_.sync();
}

void Metrics::log(const StepMetrics& m) {
  const std::vector<Number> numbers{{"loss", m.loss},
                                    {"aux_loss", m.aux_loss},
                                    {"z_loss", m.z_loss},
                                    {"lr", m.lr},
                                    {"grad_norm", m.grad_norm},
                                    {"tokens_per_second", m.tokens_per_second},
                                    {"router_entropy", m.router_entropy},
                                    {"expert_load_max_over_mean", m.expert_load_max_over_mean}};
  append(to_line(m.step, {{"tokens", m.tokens}}, numbers));
  for (const auto& [name, value] : numbers) events_.scalar(fmt::format("train/{}", name), m.step, value);
}

void Metrics::log(const ValidationMetrics& m) {
  const std::vector<Number> numbers{
      {"valid_loss", m.loss}, {"valid_perplexity", m.perplexity()}, {"valid_bits_per_token", m.bits_per_token()}};
  append(to_line(m.step, {{"valid_tokens", m.tokens}}, numbers));
  for (const auto& [name, value] : numbers) events_.scalar(fmt::format("valid/{}", std::string(name).substr(6)), m.step, value);
  events_.flush();
}

void Metrics::log(const UnderflowMetrics& m) {
  std::vector<Number> numbers;
  const auto add = [&](const char* subnormal, const char* zero, const ops::Mxfp8Underflow& lost) {
    const auto all = static_cast<double>(std::max<int64_t>(lost.elements, 1));
    numbers.emplace_back(subnormal, static_cast<double>(lost.subnormal) / all);
    numbers.emplace_back(zero, static_cast<double>(lost.zero) / all);
  };
  add("mxfp8_weights_subnormal", "mxfp8_weights_zero", m.weights);
  add("mxfp8_activations_subnormal", "mxfp8_activations_zero", m.activations);
  add("mxfp8_gradients_subnormal", "mxfp8_gradients_zero", m.gradients);
  append(to_line(m.step, {}, numbers));
  for (const auto& [name, value] : numbers) events_.scalar(fmt::format("mxfp8/{}", std::string(name).substr(6)), m.step, value);
}

}  // namespace cistron::train
