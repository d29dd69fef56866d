#include "cistron/train/ranks.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/dist/check_same.h"
#include "cistron/io/checksum.h"
#include "cistron/io/mapped_file.h"

namespace cistron::train {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// The machine, and which of its cores this rank may use.
std::string cores_text() {
  cpu_set_t set;
  std::string text = host_name();
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return text;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) text += fmt::format(" {}", core);
  return text;
}

// The program itself: versions can be equal where programs are not.
std::string build_id() { return fmt::format("{:016x}", io::xxh64(io::MappedFile("/proc/self/exe").bytes())); }

// "train.steps = 12" for each key.
std::vector<std::string> settings(const RunConfig& config) {
  std::istringstream text(to_toml(config));
  std::vector<std::string> all;
  std::string section;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    if (const size_t end = line.rfind('#'); end != std::string::npos)
      all.push_back(fmt::format("{}.{}", section, line.substr(0, line.find_last_not_of(' ', end - 1) + 1)));
  }
  return all;
}

void check_alike(dist::Communicator& world, const RunConfig& config, uint64_t store_fingerprint) {
  if (world.size() == 1) return;
  dist::check_same(world, "build", build_id());
  dist::check_same(world, "seed", std::to_string(config.train.seed));
  for (const std::string& setting : settings(config)) dist::check_same(world, "configuration", setting);
  dist::check_same(world, "store", fmt::format("{:016x}", store_fingerprint));
}

}  // namespace

dist::MeshShape mesh_shape(const RunConfig& config, int ranks) {
  const int ep = static_cast<int>(config.parallel.ep);
  const int dp = config.parallel.dp > 0 ? static_cast<int>(config.parallel.dp) : ranks / ep;
  if (dp < 1 || dp * ep != ranks)
    throw Error(ErrorKind::kUsage, fmt::format("dp x ep = {} x {} is not the number of ranks, {}", std::max(dp, 1), ep, ranks),
                "parallel.dp, parallel.ep", "dp = 0 takes the ranks that ep leaves; ep must divide them");
  (void)dist::experts_of(config.model.experts, ep, 0);  // more ranks than experts are refused
  return {.dp = dp, .ep = ep};
}

dist::Options communicator_options(const RunConfig& config) {
  return {.timeout = std::chrono::milliseconds(static_cast<int64_t>(1e3 * config.parallel.timeout_seconds))};
}

Ranks::Ranks(dist::Communicator& world, const RunConfig& config, uint64_t store_fingerprint)
    : world_((check_alike(world, config, store_fingerprint), world)), mesh_(world, mesh_shape(config, world.size())) {}

int Ranks::largest(int number) const {
  int32_t value = number;
  world_.all_reduce(Tensor::view(std::span(&value, 1)), dist::Reduction::kMax).wait();
  return value;
}

std::string Ranks::lines(const std::string& mine) const {
  std::string text;
  const auto all = dist::gather_texts(world_, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) text += fmt::format("\n  rank {}: {}", rank, all[rank]);
  return text;
}

// What is available is asked for before any rank can have gone on and taken its part.
void Ranks::check_memory(int64_t needed) const {
  const std::string host = host_name();
  int64_t sum = 0, available = INT64_MAX;
  for (const std::string& text : dist::gather_texts(world_, fmt::format("{} {} {}", needed, available_host_memory(), host))) {
    std::istringstream words(text);
    int64_t needs = 0, sees = 0;
    std::string where;
    words >> needs >> sees >> where;
    if (where != host) continue;
    sum += needs;
    available = std::min(available, sees);
  }
  if (sum > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory for the ranks of this machine",
                fmt::format("{} bytes in all, {} are available", sum, available),
                "see cistron plan for layouts that fit, or use more machines");
}

int threads_of_rank(dist::Communicator& world, int64_t threads) {
  const std::string mine = cores_text();
  const auto all = dist::gather_texts(world, mine);
  const auto sharing = static_cast<int>(std::ranges::count(all, mine));
  const auto place = static_cast<int>(std::count(all.begin(), all.begin() + world.rank(), mine));
  const int64_t cores = threads > 0 ? threads : std::max<int64_t>(std::ranges::count(mine, ' '), 1);
  return std::max<int>(1, static_cast<int>(dist::even_part(cores, sharing, place).count));
}

}  // namespace cistron::train
