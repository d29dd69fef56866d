#include "apps/output.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>

#include "cistron/core/error.h"
#include "cistron/data/store_format.h"
#include "cistron/io/json.h"
#include "cistron/io/mapped_file.h"
#include "cistron/io/small_file.h"
#include "cistron/model/hugging_face.h"

namespace cistron::apps {

namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";

[[noreturn]] void refuse(std::string_view what, const std::string& path, std::string_view advice) {
  throw Error(ErrorKind::kUsage, what, path, advice);
}

// Without "." and "..", and with links followed as far as it exists.
fs::path place_of(const fs::path& path, std::error_code& error) {
  fs::path whole = fs::weakly_canonical(path, error);
  if (error == std::errc::not_enough_memory) throw std::bad_alloc();  // which says nothing about the path
  return whole;
}

fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path whole = place_of(fs::absolute(path, error), error);
  if (error) refuse("the output cannot be there", path.string(), error.message());
  return whole.has_filename() ? whole : whole.parent_path();
}

// Whether `outer` is `inner` or one of the folders above it.
bool holds(const fs::path& outer, const fs::path& inner) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// The "format" of a folder's manifest; empty where there is none that can be read.
std::string format_of(const fs::path& folder) {
  try {
    if (!io::is_reachable(folder / kManifest)) return "";
    const auto manifest = io::parse_json(io::read_small_file(folder / kManifest, int64_t{1} << 30), kManifest);
    return manifest.is_object() ? manifest.value("format", "") : "";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadData) throw;
  } catch (const nlohmann::json::type_error&) {  // a "format" that is no string
  }
  return "";
}

// Hidden files aside, which systems leave.
template <class Known>
bool holds_only(const fs::path& folder, Known&& known) {
  return std::ranges::all_of(io::entries_of(folder), [&](const fs::path& entry) {
    const std::string name = entry.filename().string();
    return name.starts_with('.') || known(name);
  });
}

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

void check_place(const Output& output, const fs::path& place) {
  const std::string& path = output.path;
  for (const std::string& name : output.inputs) {
    std::error_code error;
    const fs::path input = place_of(name, error);
    if (error) continue;  // reading it says why
    if (holds(place, input)) refuse("the output is an input, or holds one", path, "give another --out");
    if (holds(input, place)) refuse("the output lies in an input", path, "give another --out");
  }
  for (fs::path above = place.parent_path(); above.has_relative_path(); above = above.parent_path())
    if (format_of(above) == "cistron-checkpoint")
      refuse("the output lies in a checkpoint, which it would break", path, "give another --out");
}

}  // namespace

bool check_output(const Output& output, const Common& common) {
  const std::string& path = output.path;
  if (path.empty()) refuse("the output has no name", "--out ''", "give a directory; is a shell variable unset?");
  const fs::path last = fs::path(path).has_filename() ? fs::path(path).filename() : fs::path(path).parent_path().filename();
  if (last.empty() || last == "." || last == "..")
    refuse("the output has no name of its own", path, "give the directory's name, which must not be there yet");
  check_place(output, resolved(path));
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (!fs::exists(status)) return false;
  const bool is_directory = fs::is_directory(status);
  if (is_directory && io::entries_of(path).empty()) return true;
  if (!common.force) refuse("the output exists already", path, "give --force to replace it, or another --out");
  if (!is_directory || !output.is_ours(path))
    refuse("--force replaces only what this verb wrote, and this is something else, or holds more", path,
           "remove it yourself, or give another --out");
  return true;
}

bool is_store(const fs::path& path) {
  return format_of(path) == data::kStoreFormat &&
         holds_only(path, [](const auto& name) { return is_one_of(name, {"train", "valid", kManifest}); }) &&
         std::ranges::all_of(std::initializer_list<const char*>{"train", "valid"}, [&](const char* split) {
           return holds_only(path / split, [](const auto& name) { return is_one_of(name, {"tokens.bin", "records.bin"}); });
         });
}

bool is_imported(const fs::path& path) {
  const fs::path place = resolved(path);
  const bool in_a_run = place.parent_path().filename() == "checkpoints" && place.filename().string().starts_with("step-");
  return !in_a_run && format_of(path) == "cistron-checkpoint" && holds_only(path, [](const auto& name) {
    return is_one_of(name, {kManifest, "state.json", "config.toml", "parameters.safetensors"});
  });
}

bool is_exported(const fs::path& path) {
  return model::is_exported(path) && holds_only(path, [](const std::string& name) {
           return is_one_of(name, {"config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) ||
                  (name.starts_with("model") && name.find(".safetensors") != std::string::npos);
         });
}

}  // namespace cistron::apps
