#include "cistron/train/run_folder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"

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

}  // namespace

RunFolder::RunFolder(fs::path path, Mode mode) : path_(std::move(path)), mode_(mode) {
  if (!fs::exists(path_)) return;
  if (!fs::is_directory(path_)) throw Error(ErrorKind::kUsage, "not a directory", path_.string(), "give another --out");
  if (mode_ == Mode::kNew) check_unused(path_);
  lock_ = std::make_unique<RunLock>(path_);
}

std::unique_ptr<Checkpoint> RunFolder::resume_from(const RunConfig& config, uint64_t store_fingerprint,
                                                   Progress& progress) const {
  if (mode_ != Mode::kResume) return nullptr;
  auto checkpoint = checkpoints().find([&](const std::string& line) { progress.warn("cistron: " + line); });
  if (checkpoint == nullptr) return nullptr;
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

void RunFolder::make_and_lock() {
  std::error_code error;
  fs::create_directories(path_ / "checkpoints", error);
  if (error) throw Error(ErrorKind::kFailed, "cannot make the run's directory", path_.string(), error.message());
  if (lock_ != nullptr) return;
  lock_ = std::make_unique<RunLock>(path_);
  check_unused(path_);  // another may have made it, and be done, since the constructor looked
}

void RunFolder::clear() const {
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name == "checkpoints" || name == "config.toml" || name == "metrics.jsonl" || name.starts_with("events.out.tfevents."))
      fs::remove_all(entry.path());
  }
}

void RunFolder::prepare(const RunConfig& config, int64_t checkpoint_bytes) {
  if (mode_ == Mode::kForce && lock_ != nullptr) clear();
  make_and_lock();
  checkpoints().remove_partial();
  const auto available = static_cast<int64_t>(std::min<uintmax_t>(fs::space(path_).available, INT64_MAX));
  if (available < checkpoint_bytes)
    throw Error(ErrorKind::kOutOfSpace,
                fmt::format("a checkpoint needs {} bytes and the disk has {}", checkpoint_bytes, available), path_.string(),
                "make room, or give an --out on another disk");
  io::write_file(path_ / "config.toml", to_toml(config));
}

}  // namespace cistron::train
