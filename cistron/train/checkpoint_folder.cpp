#include "cistron/train/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "cistron/core/error.h"
#include "cistron/core/one_line.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/single.h"
#include "cistron/dist/together.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/mapped_file.h"
#include "cistron/io/small_file.h"

namespace cistron::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-", kPartial = ".partial", kReplaced = ".replaced", kBroken = ".broken";
constexpr const char* kLatest = "latest";

/// The number in "step-00001000"; -1 for any other name, part-written ones included.
int64_t step_of(const std::string& name) {
  const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  const bool number = !digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : -1;
}

}  // namespace

std::string CheckpointFolder::name_of(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::string CheckpointFolder::latest() const {
  if (!io::is_reachable(folder_ / kLatest)) return "";
  const std::string text = io::read_small_file(folder_ / kLatest, 4096);
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_first_of("\r\n", begin);
  if (begin == std::string::npos) return "";
  const std::string line = text.substr(begin, end - begin);
  return line.substr(0, line.find_last_not_of(" \t") + 1);
}

bool CheckpointFolder::holds_only_checkpoints() const {
  return std::ranges::all_of(io::entries_of(folder_), [](const fs::path& path) {
    const std::string name = path.filename().string();
    const std::string suffix = path.extension().string();
    const bool known = suffix.empty() || suffix == kPartial || suffix == kReplaced || suffix == kBroken;
    const bool checkpoint = known && step_of(path.stem().string()) >= 0 && path.stem().string().size() >= name_of(0).size();
    return checkpoint || name == kLatest || name == kLatest + std::string(kPartial) || name.starts_with('.');
  });
}

std::vector<std::string> CheckpointFolder::names() const {
  std::vector<std::string> all;
  for (const fs::path& path : io::entries_of(folder_)) {
    const std::string name = path.filename().string();
    if (step_of(name) >= 0 && fs::is_directory(path)) all.push_back(name);
  }
  std::ranges::sort(all, std::ranges::greater{}, step_of);
  return all;
}

void CheckpointFolder::save(Context& ctx, const CheckpointInfo& info, const std::vector<ParameterSlice>& slices, int64_t keep,
                            dist::Communicator& world) const {
  const std::string name = name_of(info.state.step);
  dist::together(world, [&] {
    if (world.rank() == 0) check_here();
  });
  save_checkpoint(ctx, folder_ / name, info, slices, /*replace=*/true, world);
  dist::together(world, [&] {
    if (world.rank() != 0) return;
    check_here();  // writing may have taken long
    io::write_file(folder_ / kLatest, name + "\n");
    try {
      prune(info.state.step, keep);
    } catch (const Error&) {  // what cannot be removed costs space, not safety
    }
  });
}

void CheckpointFolder::check_here() const {
  if (lock_ == nullptr) return;
  lock_->check();
  std::error_code error;
  if (fs::is_directory(folder_, error)) return;
  throw Error(ErrorKind::kFailed, "the checkpoints' folder has gone", folder_.string(),
              "nothing was saved; start the run again" + (error ? ": " + error.message() : ""));
}

void CheckpointFolder::prune(int64_t step, int64_t keep) const {
  int64_t kept = 0;
  for (const auto& name : names()) {
    if (step_of(name) > step || ++kept <= keep) continue;             // later ones are of a run that went another way
    const fs::path aside = folder_ / (name + std::string(kPartial));  // so that half of it never looks like a checkpoint
    std::error_code ignored;
    fs::rename(folder_ / name, aside, ignored);
    io::sync_directory(folder_);  // nor after the power went
    fs::remove_all(aside, ignored);
  }
}

std::vector<fs::path> CheckpointFolder::leftovers(std::string_view suffix) const {
  std::vector<fs::path> left = io::entries_of(folder_);
  std::erase_if(left, [&](const fs::path& path) { return step_of(path.stem().string()) < 0 || path.extension() != suffix; });
  return left;
}

void CheckpointFolder::remove_partial() const {
  std::error_code ignored;
  for (const auto& path : leftovers(kPartial)) fs::remove_all(path, ignored);
  for (fs::path path : leftovers(kReplaced)) {
    const fs::path old = path;
    if (fs::is_directory(path.replace_extension(), ignored)) fs::remove_all(old, ignored);  // else it is the only copy
  }
}

void CheckpointFolder::restore_replaced() const {
  for (fs::path path : leftovers(kReplaced)) io::restore_replaced(path.replace_extension());
}

std::vector<std::string> CheckpointFolder::candidates(const Say& say) const {
  std::vector<std::string> all = names();
  const std::string latest = this->latest();
  const auto named = std::ranges::find(all, latest);
  if (named != all.end())
    std::rotate(all.begin(), named, named + 1);
  else if (!latest.empty())
    say(fmt::format("'latest' points to {}, which is not there", latest));
  return all;
}

void CheckpointFolder::set_aside(const std::string& name) const {
  const fs::path aside = folder_ / (name + std::string(kBroken));
  std::error_code error;
  fs::remove_all(aside, error);  // an older one
  if (!error) fs::rename(folder_ / name, aside, error);
  if (!error) return;
  errno = error.value();  // going on would write over it
  io::throw_errno("cannot set the broken checkpoint aside", folder_ / name);
}

std::unique_ptr<Checkpoint> CheckpointFolder::find(const Say& say, dist::Communicator& world,
                                                   std::vector<std::string>* passed_over) const {
  return find(say, world, passed_over, "bring one back, or give --force to start again");
}

std::unique_ptr<Checkpoint> CheckpointFolder::find(const Say& say, dist::Communicator& world,
                                                   std::vector<std::string>* passed_over, const std::string& advice) const {
  std::string list;
  dist::together(world, [&] {
    if (world.rank() == 0) list = fmt::format("{}", fmt::join(candidates([&](const auto& line) { say(one_line(line)); }), "\n"));
  });
  std::istringstream names(dist::gather_texts(world, list)[0]);
  std::string problem;
  for (std::string name; std::getline(names, name);) {
    try {
      std::unique_ptr<Checkpoint> checkpoint;
      dist::together(world, [&] { checkpoint = std::make_unique<Checkpoint>(folder_ / name, world.size(), world.rank()); });
      return checkpoint;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kBadData && error.kind() != ErrorKind::kUsage) throw;
      problem = error.what();
      say(one_line(fmt::format("passing over a broken checkpoint: {}", problem)));
      if (passed_over != nullptr) passed_over->push_back(name);
    }
  }
  if (!problem.empty())
    throw Error(ErrorKind::kBadData, "no whole checkpoint", folder_.string(), advice + "; the last one: " + problem);
  return nullptr;
}

std::unique_ptr<Checkpoint> CheckpointFolder::find(const Say& say) const {
  constexpr int kMostLooks = 100;
  for (int look = 1;; ++look) {
    std::vector<std::string> lines;
    const auto pass_on = [&] { std::ranges::for_each(lines, say); };
    const auto before = candidates([](const auto&) {});
    const auto may_look_again = [&] { return look < kMostLooks && candidates([](const auto&) {}) != before; };
    try {
      auto found = find([&](const std::string& line) { lines.push_back(line); }, *dist::single(), nullptr, "take another model");
      if (!lines.empty() && may_look_again()) continue;
      pass_on();
      return found;
    } catch (...) {
      if (may_look_again()) continue;
      pass_on();
      throw;
    }
  }
}

}  // namespace cistron::train
