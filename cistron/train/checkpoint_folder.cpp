#include "cistron/train/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/single.h"
#include "cistron/dist/together.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/mapped_file.h"

namespace cistron::train {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-", kPartial = ".partial", kReplaced = ".replaced", kBroken = ".broken";

/// The number in "step-00001000"; -1 for any other name, part-written ones included.
int64_t step_of(const std::string& name) {
  const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  const bool number = !digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoll(digits) : -1;
}

std::string read_latest(const fs::path& folder) {
  try {
    const std::string text = io::read_if_there(folder / "latest").value_or("");
    return text.substr(0, text.find('\n'));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadData) throw;
    return {};  // it is something else than a file
  }
}

/// What is in a folder; nothing where there is none. One that cannot be listed is not one that is empty.
std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> all;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) all.push_back(*entry);
  if (!error || error == std::errc::no_such_file_or_directory) return all;
  errno = error.value();
  io::throw_errno("cannot list", folder);
}

}  // namespace

std::string CheckpointFolder::name_of(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<std::string> CheckpointFolder::names() const {
  std::vector<std::string> all;
  for (const auto& entry : entries_of(folder_)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && step_of(name) >= 0) all.push_back(name);
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
    io::write_file(folder_ / "latest", name + "\n");
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
  std::vector<fs::path> left;
  for (const auto& entry : entries_of(folder_))
    if (entry.path().filename().string().starts_with(kPrefix) && entry.path().extension() == suffix) left.push_back(entry.path());
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
  const std::string latest = read_latest(folder_);
  const auto named = std::ranges::find(all, latest);
  if (named != all.end())
    std::rotate(all.begin(), named, named + 1);
  else if (!latest.empty())
    say(fmt::format("'latest' points to {}, which is not there", latest));
  return all;
}

void CheckpointFolder::set_aside(const std::string& name) const {
  const fs::path aside = folder_ / (name + std::string(kBroken));
  std::error_code ignored;
  fs::remove_all(aside, ignored);  // an older one
  fs::rename(folder_ / name, aside, ignored);
}

std::unique_ptr<Checkpoint> CheckpointFolder::find(const Say& say, dist::Communicator& world,
                                                   std::vector<std::string>* passed_over) const {
  return find(say, world, passed_over, "remove the folder to start afresh");
}

std::unique_ptr<Checkpoint> CheckpointFolder::find(const Say& say, dist::Communicator& world,
                                                   std::vector<std::string>* passed_over, const std::string& advice) const {
  const std::string list = world.rank() == 0 ? fmt::format("{}", fmt::join(candidates(say), "\n")) : "";
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
      say(fmt::format("passing over a broken checkpoint: {}", problem));
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
