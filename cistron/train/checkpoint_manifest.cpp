#include "cistron/train/checkpoint_manifest.h"

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "cistron/core/error.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/checksum.h"
#include "cistron/io/json.h"
#include "cistron/io/mapped_file.h"

namespace cistron::train {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

uint64_t checksum(const std::string& text) { return io::xxh64(std::as_bytes(std::span(text))); }

bool is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  const bool absent = type == fs::file_type::not_found || error == std::errc::too_many_symbolic_link_levels;
  if (error && !absent) throw Error(ErrorKind::kFailed, "cannot reach the file", path.string(), error.message());
  return type == fs::file_type::regular;
}

json to_json(const Manifest& manifest) {
  json files = json::object(), slices = json::array();
  for (const auto& file : manifest.files) files[file.name] = {{"bytes", file.bytes}, {"xxh64", file.xxh64}};
  for (const auto& slice : manifest.slices) {
    json shape = json::array();
    for (int i = 0; i < slice.shape.rank(); ++i) shape.push_back(slice.shape[i]);
    slices.push_back(
        {{"name", slice.parameter}, {"shape", shape}, {"begin", slice.begin}, {"count", slice.count}, {"file", slice.values}});
    if (!slice.moments.empty()) slices.back()["moments"] = slice.moments;
  }
  return {{"files", files}, {"slices", slices}};
}

// A file beside the manifest, and nowhere else.
std::string file_name(const json& name, const fs::path& where) {
  const auto text = name.get<std::string>();
  if (text.empty() || text.size() > NAME_MAX || text.front() == '.' ||
      text.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
    refuse_checkpoint(fmt::format("the file {} is not beside the manifest", name.dump()), where);
  return text;
}

Shape shape_of(const json& dims, const fs::path& where) {
  constexpr int64_t kMostValues = int64_t{1} << 50;  // of a parameter, as of a model
  Shape shape;
  int64_t values = 1;
  for (const json& dim : dims) {
    const int64_t size = io::json_integer(dim, where.string());
    if (size < 1 || size > kMostValues / values || shape.rank() == Shape::kMaxRank)
      refuse_checkpoint(fmt::format("the shape {}", dims.dump()), where);
    values *= size;
    shape.append(size);
  }
  if (shape.rank() == 0) refuse_checkpoint("a parameter without a shape", where);
  return shape;
}

Manifest from_json(const json& body, const fs::path& where) {
  Manifest manifest;
  const auto number = [&](const json& of, const char* key) { return io::json_integer(of.at(key), where.string()); };
  for (const auto& [name, file] : body.at("files").items())
    manifest.files.push_back({file_name(name, where), number(file, "bytes"), file.at("xxh64").get<std::string>()});
  for (const json& item : body.at("slices")) {
    Manifest::Slice slice{.parameter = item.at("name").get<std::string>(),
                          .shape = shape_of(item.at("shape"), where),
                          .begin = number(item, "begin"),
                          .count = number(item, "count"),
                          .values = file_name(item.at("file"), where)};
    if (item.contains("moments")) slice.moments = file_name(item.at("moments"), where);
    manifest.slices.push_back(std::move(slice));
  }
  return manifest;
}

void check_whole(const json& manifest, const fs::path& path) {
  if (!manifest.is_object()) refuse_checkpoint("a broken manifest", path);
  if (manifest.at("format") != "cistron-checkpoint") refuse_checkpoint("not the manifest of a checkpoint", path);
  const json& version = manifest.at("version");
  if (version != Manifest::kVersion)
    refuse_checkpoint(fmt::format("a checkpoint of version {}, this program reads {}", version.dump(), Manifest::kVersion), path);
  json body = manifest;
  body.erase("xxh64");
  if (manifest.at("xxh64") != hex(checksum(body.dump()))) refuse_checkpoint("a wrong checksum", path);
}

}  // namespace

void refuse_checkpoint(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kBadData, what, where.string(), "take another checkpoint; this one cannot be trusted");
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

std::string read_text(const fs::path& path) {
  const io::MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void Manifest::add(const Manifest& part) {
  files.insert(files.end(), part.files.begin(), part.files.end());
  slices.insert(slices.end(), part.slices.begin(), part.slices.end());
}

Manifest::File describe_file(const fs::path& file) {
  const io::MappedFile mapped(file);
  return {file.filename().string(), std::ssize(mapped.bytes()), hex(io::xxh64(mapped.bytes()))};
}

std::string to_text(const Manifest& part) { return to_json(part).dump(); }

Manifest from_text(const std::string& text, const fs::path& where) {
  return from_json(io::parse_json(text, where.string()), where);
}

void write_manifest(const fs::path& directory, const Manifest& manifest) {
  json whole = to_json(manifest);
  whole["format"] = "cistron-checkpoint";
  whole["version"] = Manifest::kVersion;
  whole["xxh64"] = hex(checksum(whole.dump()));
  io::write_file(directory / Manifest::kName, whole.dump(1) + "\n");
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path path = directory / Manifest::kName;
  if (!is_file(path)) refuse_checkpoint("the checkpoint has no manifest", path);
  try {
    const json manifest = io::parse_json(read_text(path), path.string());
    check_whole(manifest, path);
    return from_json(manifest, path);
  } catch (const json::exception& error) {
    refuse_checkpoint(fmt::format("a broken manifest ({})", error.what()), path);
  }
}

void verify_files(const fs::path& directory, const Manifest& manifest, int parts, int part) {
  std::set<std::string> known{Manifest::kName};
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const auto& expected = manifest.files[i];
    known.insert(expected.name);
    const fs::path path = directory / expected.name;
    if (!is_file(path)) refuse_checkpoint("a part is missing", path);
    if (const auto bytes = static_cast<int64_t>(fs::file_size(path)); bytes != expected.bytes)
      refuse_checkpoint(fmt::format("{} bytes instead of {}", bytes, expected.bytes), path);
    if (static_cast<int>(i % static_cast<size_t>(parts)) == part && describe_file(path).xxh64 != expected.xxh64)
      refuse_checkpoint("a wrong checksum", path);
  }
  for (const auto& file : fs::directory_iterator(directory))
    if (const std::string name = file.path().filename().string(); !known.contains(name) && !name.starts_with('.'))
      refuse_checkpoint("a file that does not belong here", file.path());
}

}  // namespace cistron::train
