#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cistron/core/checked.h"
#include "cistron/io/json.h"
#include "cistron/io/safetensors.h"

namespace cistron::io {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

bool is_pickle(const fs::path& path) {
  constexpr std::string_view kEndings[] = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"};
  return std::ranges::find(kEndings, path.extension().string()) != std::end(kEndings);
}

[[noreturn]] void refuse_pickle(const fs::path& path) {
  throw Error(ErrorKind::kBadData, "a pickle can run any program and is never read", path.string(),
              "convert it to safetensors (in Python: safetensors.torch.save_file)");
}

// The file to read: the one given, or what the directory holds.
fs::path locate(const fs::path& path) {
  if (is_pickle(path)) refuse_pickle(path);
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  for (const auto name : {kSingle, kIndex})
    if (is_reachable(path / name)) return path / name;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
    if (is_pickle(entry->path())) refuse_pickle(entry->path());
  throw Error(ErrorKind::kBadData, "no model here", path.string(), fmt::format("{} or {} is needed", kSingle, kIndex));
}

// tensor -> shard, both as the index spells them.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const MappedFile file(path);
  const auto json = parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
  const auto refuse = [&](std::string_view what) {
    throw Error(ErrorKind::kBadData, what, path.string(), "the index is damaged; get it again");
  };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    refuse("a shard index without weight_map");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) refuse("the weight_map names a shard by what is no string");
    const auto name = shard.get<std::string>();
    if (is_pickle(name)) refuse_pickle(name);
    if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      refuse(fmt::format("the shard {} is not a file beside the index", json_quoted(name)));
    shards.emplace(tensor, name);
  }
  return shards;
}

}  // namespace

SafetensorsModel::SafetensorsModel(const fs::path& path) : path_(locate(path)) {
  const bool sharded = path_.extension() == ".json";
  std::map<std::string, std::string> index;
  std::set<std::string> names = {path_.filename().string()};
  if (sharded) {
    index = read_index(path_);
    names.clear();
    for (const auto& [tensor, shard] : index) names.insert(shard);
  }
  for (const auto& name : names)
    if (sharded && !is_reachable(path_.parent_path() / name))
      throw Error(ErrorKind::kBadData, fmt::format("the shard {} is missing", json_quoted(name)), path_.string(),
                  "get the whole model");
  for (const auto& name : names) add(path_.parent_path() / name, name, sharded ? &index : nullptr);
  for (const auto& [tensor, shard] : index)
    if (!tensors_.contains(tensor))
      throw Error(ErrorKind::kBadData,
                  fmt::format("the index places tensor {} in {}, which lacks it", json_quoted(tensor), json_quoted(shard)),
                  path_.string(), "index and shards belong to different models");
}

void SafetensorsModel::add(const fs::path& path, const std::string& shard, const std::map<std::string, std::string>* index) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const auto& [name, view] : files_.back()->tensors()) {
    if (!tensors_.emplace(name, &view).second)
      throw Error(ErrorKind::kBadData, fmt::format("tensor {} is in two shards", json_quoted(name)), path.string(),
                  "keep one of them");
    if (index == nullptr) continue;
    const auto found = index->find(name);
    if (found == index->end() || found->second != shard)
      throw Error(ErrorKind::kBadData, fmt::format("the index does not place tensor {} here", json_quoted(name)), path.string(),
                  "index and shards belong to different models");
  }
}

const SafetensorsView& SafetensorsModel::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Error(ErrorKind::kBadData, fmt::format("no tensor {}", json_quoted(name)), path_.string(), "is it the right model?");
  return *found->second;
}

std::vector<std::vector<TensorSpec>> plan_shards(std::span<const TensorSpec> specs, int64_t shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  int64_t used = 0;
  for (const auto& spec : specs) {
    const int64_t bytes = safetensors_bytes(spec);
    if (!shards.back().empty() && checked_add(used, bytes) > shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(spec);
    used += bytes;
  }
  return shards;
}

std::string shard_name(int64_t index, int64_t count) {
  return count == 1 ? std::string(kSingle) : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_shard_index(const fs::path& directory, std::span<const std::vector<TensorSpec>> shards) {
  int64_t total = 0;
  auto weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const auto& spec : shards[i]) {
      weight_map[spec.name] = shard_name(static_cast<int64_t>(i), std::ssize(shards));
      total = checked_add(total, safetensors_bytes(spec));
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  write_file(directory / kIndex, index.dump(2) + "\n");
}

}  // namespace cistron::io
