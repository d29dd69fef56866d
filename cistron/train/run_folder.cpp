#include "cistron/train/run_folder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/together.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/small_file.h"
#include "cistron/train/metrics.h"

namespace cistron::train {

namespace fs = std::filesystem;

namespace {

// These decide what the numbers in a checkpoint mean, or which data come next.
bool is_fixed(const std::string& difference) {
  static constexpr std::array<std::string_view, 4> kFixed{"model.", "data.context", "train.batch_tokens", "train.seed"};
  return std::ranges::any_of(kFixed, [&](std::string_view key) { return difference.starts_with(key); });
}

void check_unused(const fs::path& run) {
  for (const auto& entry : fs::directory_iterator(run)) {
    const bool empty = entry.path().filename() == RunLock::kName || (entry.is_directory() && fs::is_empty(entry.path()));
    if (empty) continue;  // left by a start that was refused
    throw Error(ErrorKind::kUsage, "the run exists already", run.string(),
                "give --resume to go on with it, --force to start it again, or another --out");
  }
}

int64_t bytes_of(const std::vector<fs::path>& paths) {
  int64_t sum = 0;
  for (const auto& path : paths) {
    if (fs::is_regular_file(path)) sum += static_cast<int64_t>(fs::file_size(path));
    if (!fs::is_directory(path)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) sum += static_cast<int64_t>(entry.file_size());
  }
  return sum;
}

// The checkpoints of a run that is being cleared: while they are there, what is beside them may be of the old run and of no use.
constexpr const char* kOldCheckpoints = ".checkpoints-being-removed";

// Every configuration that a run keeps begins so (to_toml).
bool is_run_configuration(const fs::path& file) {
  return fs::is_regular_file(file) && io::read_small_file(file).starts_with("[model]\npreset = ");
}

// --force deletes, and --resume cuts, what has a run's names: so these must be known as ours by more than a name. A start that
// was killed early has no configuration yet, and nothing but an empty folder or the beginning of a checkpoint.
void check_is_run(const fs::path& path) {
  if (fs::is_directory(path / kOldCheckpoints)) return;
  const fs::path checkpoints = path / "checkpoints";
  const bool is_whole = is_run_configuration(path / "config.toml");
  const bool known = fs::is_directory(checkpoints) && !fs::exists(path / "manifest.json") &&
                     CheckpointFolder(checkpoints).holds_only_checkpoints();
  if (is_whole && known) return;
  const bool is_empty = known && std::ranges::none_of(io::entries_of(checkpoints), [](const fs::path& entry) {
                          return entry.extension().empty() && !entry.filename().string().starts_with('.');
                        });
  for (const fs::path& entry : io::entries_of(path)) {
    const std::string name = entry.filename().string();
    const bool begun = name == RunLock::kName || name == "config.toml.partial" || (name == "checkpoints" && is_empty);
    if (!begun)
      throw Error(ErrorKind::kUsage, "not a run", path.string(),
                  "give the directory of a run, or a new one; nothing was changed");
  }
}

// Metrics of twice as many steps as there are between checkpoints: then there was one.
bool had_checkpoints(const fs::path& run, int64_t every) { return every > 0 && recorded_step(run, 0).last_step > 2 * every; }

}  // namespace

RunFolder::RunFolder(fs::path path, Mode mode, dist::Communicator& world) : path_(std::move(path)), mode_(mode), world_(world) {
  constexpr std::array kModes{"neither", "--resume", "--force"};
  dist::check_same(world_, "start (--resume, --force)", kModes[static_cast<size_t>(mode_)]);
  dist::check_same(world_, "--out", path_.string());
  if (world_.rank() != 0 || !fs::exists(path_)) return;
  if (!fs::is_directory(path_)) throw Error(ErrorKind::kUsage, "not a directory", path_.string(), "give another --out");
  mode_ == Mode::kNew ? check_unused(path_) : check_is_run(path_);
  lock_ = std::make_unique<RunLock>(path_);
}

std::unique_ptr<Checkpoint> RunFolder::resume_from(const RunConfig& config, uint64_t store_fingerprint, Progress& progress) {
  if (mode_ != Mode::kResume) return nullptr;
  if (lock_ != nullptr) checkpoints().restore_replaced();
  auto checkpoint =
      checkpoints().find([&](const std::string& line) { progress.warn("cistron: " + line); }, world_, &passed_over_);
  if (checkpoint == nullptr) {
    check_nothing_lost();
    return nullptr;
  }
  const auto& info = checkpoint->info();
  for (const auto& difference : differences(info.config, config)) {
    if (is_fixed(difference))
      throw Error(ErrorKind::kUsage, "the configuration is not the run's: " + difference, path_.string(),
                  "resume with the run's own config.toml, or start another run");
    progress.say("changed since the checkpoint: " + difference);
  }
  if (info.state.store_fingerprint != store_fingerprint)
    throw Error(ErrorKind::kUsage, "the store is not the one that the run was trained on", config.data.store,
                "give the run's own store, or start another run");
  if (!checkpoint->has_optimizer())
    throw Error(ErrorKind::kUsage, "the checkpoint has no optimizer state", checkpoint->directory().string(),
                "start another run");
  return checkpoint;
}

// Starting again would overwrite the metrics and call a lost run a new one.
void RunFolder::check_nothing_lost() const {
  dist::together(world_, [&] {
    if (world_.rank() != 0 || !is_run_configuration(path_ / "config.toml") || fs::exists(path_ / kOldCheckpoints)) return;
    const std::string latest = checkpoints().latest();
    const int64_t every = load_config(path_ / "config.toml", {}).train.checkpoint_every;
    if (latest.empty() && !had_checkpoints(path_, every)) return;
    throw Error(ErrorKind::kBadData,
                latest.empty() ? "the run's checkpoints are gone" : "the checkpoint that 'latest' names is gone",
                (path_ / "checkpoints" / latest).string(), "bring it back, or give --force to start again");
  });
}

void RunFolder::make_and_lock() {
  if (lock_ != nullptr) lock_->check();
  io::make_directories(path_ / "checkpoints");
  if (lock_ != nullptr) return;
  lock_ = std::make_unique<RunLock>(path_);
  check_unused(path_);  // another may have made it, and be done, since the constructor looked
}

std::vector<fs::path> RunFolder::own_entries() const {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name == "checkpoints" || name == kOldCheckpoints || name == "config.toml" || name == "metrics.jsonl" ||
        name.starts_with("events.out.tfevents."))
      all.push_back(entry.path());
  }
  return all;
}

void RunFolder::check_space(int64_t needed, int64_t freed) const {
  const auto available = static_cast<int64_t>(std::min<uintmax_t>(fs::space(path_).available, INT64_MAX / 2));
  if (available + freed < needed)
    throw Error(ErrorKind::kOutOfSpace, fmt::format("a checkpoint needs {} bytes and the disk has {}", needed, available + freed),
                path_.string(), "make room, or give an --out on another disk");
}

// The checkpoints step aside first, in one step, and go last: a start killed here never leaves half a run that --resume would
// take for one.
void RunFolder::clear() {
  const fs::path aside = path_ / kOldCheckpoints;
  if (!fs::exists(aside)) fs::rename(path_ / "checkpoints", aside);
  io::sync_directory(path_);
  for (const auto& path : own_entries())
    if (path != aside) fs::remove_all(path);
  io::sync_directory(path_);
  fs::remove_all(aside);
  io::make_directories(path_ / "checkpoints");
}

void RunFolder::prepare(const RunConfig& config, int64_t checkpoint_bytes) {
  if (world_.rank() != 0) return;
  // A start under --force that was killed while it cleared the old run is done to its end, also by --resume.
  const bool replaces = lock_ != nullptr && (mode_ == Mode::kForce || fs::exists(path_ / kOldCheckpoints));
  make_and_lock();
  checkpoints().remove_partial();
  for (const std::string& name : passed_over_) checkpoints().set_aside(name);
  check_space(checkpoint_bytes, replaces ? bytes_of(own_entries()) : 0);
  if (replaces) clear();
  io::write_file(path_ / "config.toml", to_toml(config));
}

}  // namespace cistron::train
