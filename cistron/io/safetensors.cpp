#include "cistron/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cistron/core/checked.h"
#include "cistron/io/json.h"

namespace cistron::io {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's bound
constexpr std::string_view kAdvice = "the file is damaged; get it again";

constexpr std::pair<std::string_view, int64_t> kDtypes[] = {{"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                                                            {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
                                                            {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};

[[noreturn]] void refuse(std::string_view what, const std::filesystem::path& path) {
  throw Error(ErrorKind::kBadData, what, path.string(), kAdvice);
}

struct Entry {
  TensorSpec spec;
  int64_t begin = 0, end = 0;
};

// One tensor's words in the header, made sense of.
class EntryParser {
 public:
  EntryParser(const std::filesystem::path& path, std::string_view name) : path_(path), name_(name) {}

  Entry parse(const nlohmann::json& json) const {
    if (!json.is_object() || json.size() != 3) fail("its entry does not hold dtype, shape and data_offsets alone");
    const auto& dtype = member(json, "dtype");
    if (!dtype.is_string()) fail("its dtype is no string");
    Entry entry{{std::string(name_), dtype.get<std::string>(), numbers(member(json, "shape"), "shape")}};
    const auto offsets = numbers(member(json, "data_offsets"), "data_offsets");
    if (offsets.size() != 2) fail("its data_offsets are not two numbers");
    entry.begin = offsets[0];
    entry.end = offsets[1];
    check(entry);
    return entry;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { refuse(fmt::format("tensor {}: {}", json_quoted(name_), what), path_); }

  const nlohmann::json& member(const nlohmann::json& json, const char* key) const {
    const auto found = json.find(key);
    if (found == json.end()) fail(fmt::format("it has no {}", key));
    return *found;
  }

  std::vector<int64_t> numbers(const nlohmann::json& json, std::string_view key) const {
    if (!json.is_array()) fail(fmt::format("its {} is no list", key));
    std::vector<int64_t> result;
    for (const auto& item : json) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > uint64_t{INT64_MAX})
        fail(fmt::format("its {} holds what is not a whole number from 0 to 2^63 - 1", key));
      result.push_back(item.get<int64_t>());
    }
    return result;
  }

  void check(const Entry& entry) const {
    if (safetensors_element_size(entry.spec.dtype) == 0) fail(fmt::format("unknown dtype {}", json_quoted(entry.spec.dtype)));
    if (entry.begin > entry.end) fail(fmt::format("its bytes begin at {} and end at {}", entry.begin, entry.end));
    int64_t bytes = 0;
    try {
      bytes = safetensors_bytes(entry.spec);
    } catch (const Error&) {
      fail("its shape overflows");
    }
    if (bytes != entry.end - entry.begin)
      fail(fmt::format("its shape and dtype make {} bytes, its data_offsets {}", bytes, entry.end - entry.begin));
  }

  const std::filesystem::path& path_;
  std::string_view name_;
};

// The spans, sorted, must be the data from its first byte to its last.
void check_spans(std::vector<Entry>& entries, int64_t data_size, const std::filesystem::path& path) {
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  int64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.end > data_size)
      refuse(fmt::format("tensor {} reaches past the end of the file", json_quoted(entry.spec.name)), path);
    if (entry.begin != end)
      refuse(fmt::format("tensor {} {}", json_quoted(entry.spec.name),
                         entry.begin < end ? "overlaps another" : "has a hole before it"),
             path);
    end = entry.end;
  }
  if (end != data_size) refuse(fmt::format("{} bytes at the end belong to no tensor", data_size - end), path);
}

std::string_view header_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  uint64_t size = 0;
  if (bytes.size() < sizeof size) refuse("too short for a safetensors file", file.path());
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > kMaxHeader)
    refuse(fmt::format("a safetensors header of {} bytes; at most {} are allowed", size, kMaxHeader), file.path());
  if (size > bytes.size() - sizeof size)
    refuse(fmt::format("a safetensors header of {} bytes is longer than the file", size), file.path());
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + sizeof size, size);
  if (!header.starts_with('{')) refuse("not a safetensors file: its header is no JSON object", file.path());
  return header;
}

std::map<std::string, std::string> parse_metadata(const nlohmann::json& json, const std::filesystem::path& path) {
  if (!json.is_object()) refuse("__metadata__ is no object", path);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) refuse(fmt::format("__metadata__ {} is no string", json_quoted(key)), path);
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

}  // namespace

int64_t safetensors_element_size(std::string_view dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &std::pair<std::string_view, int64_t>::first);
  return found == std::end(kDtypes) ? 0 : found->second;
}

int64_t safetensors_bytes(const TensorSpec& spec) {
  int64_t bytes = safetensors_element_size(spec.dtype);
  CISTRON_CHECK(bytes > 0, "tensor {} has the unknown dtype {}", json_quoted(spec.name), json_quoted(spec.dtype));
  for (const int64_t dim : spec.shape) {
    CISTRON_CHECK(dim >= 0, "tensor {} has a dimension of {}", json_quoted(spec.name), dim);
    bytes = checked_mul(bytes, dim);
  }
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(std::make_shared<const MappedFile>(path)) {
  const std::string_view header = header_of(*file_);
  const auto data = file_->bytes().subspan(sizeof(uint64_t) + header.size());
  const nlohmann::json json = parse_json(header, path.string());
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__")
      metadata_ = parse_metadata(value, path);
    else
      entries.push_back(EntryParser(path, name).parse(value));
  }
  check_spans(entries, static_cast<int64_t>(data.size()), path);
  for (Entry& entry : entries) {
    const auto bytes = data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
    tensors_.emplace(entry.spec.name, SafetensorsView{entry.spec, bytes});
  }
}

const SafetensorsView& SafetensorsFile::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Error(ErrorKind::kBadData, fmt::format("no tensor {}", json_quoted(name)), path().string(), "is it the right file?");
  return found->second;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::vector<const TensorSpec*> order;
  for (const auto& spec : specs) order.push_back(&spec);
  std::ranges::stable_sort(order, std::greater(), [](const TensorSpec* spec) { return safetensors_element_size(spec->dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  auto& members = header.get_ref<nlohmann::ordered_json::object_t&>();  // whose own look-up is linear; names are unique below
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorSpec* spec : order) {
    const int64_t end = checked_add(offset, safetensors_bytes(*spec));
    CISTRON_CHECK(slots_.emplace(spec->name, Slot{offset, end}).second, "tensor {} is declared twice", json_quoted(spec->name));
    members.emplace_back(spec->name,
                         nlohmann::ordered_json{{"dtype", spec->dtype}, {"shape", spec->shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(std::ssize(text), 8)), ' ');
  const uint64_t size = text.size();
  file_.write(std::as_bytes(std::span(&size, 1)));
  file_.write(text);
  const auto start = static_cast<int64_t>(sizeof size + size);
  for (auto& [name, slot] : slots_) slot = {slot.next + start, slot.end + start};
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  CISTRON_CHECK(found != slots_.end(), "tensor {} was not declared", json_quoted(name));
  Slot& slot = found->second;
  CISTRON_CHECK(std::ssize(bytes) <= slot.end - slot.next, "tensor {} has {} bytes left, not {}", json_quoted(name),
                slot.end - slot.next, bytes.size());
  file_.write_at(slot.next, bytes);
  slot.next += std::ssize(bytes);
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_)
    CISTRON_CHECK(slot.next == slot.end, "tensor {} lacks {} bytes", json_quoted(name), slot.end - slot.next);
  file_.commit();
}

}  // namespace cistron::io
