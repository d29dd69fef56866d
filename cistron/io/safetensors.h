#pragma once
// The safetensors format: u64 length of the header, the header in JSON, the tensors' bytes.
// https://github.com/huggingface/safetensors
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cistron/io/atomic_file.h"
#include "cistron/io/mapped_file.h"

namespace cistron::io {

/// As the header declares it. `dtype` is the format's word: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 U64 U32 U16 U8 BOOL.
struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  bool operator==(const TensorSpec&) const = default;
};

/// Bytes of one element; 0 for a word that is not in the table above.
int64_t safetensors_element_size(std::string_view dtype);

/// Bytes of the whole tensor. Throws on an unknown dtype, a negative dimension, and overflow.
int64_t safetensors_bytes(const TensorSpec& spec);

struct SafetensorsView {
  TensorSpec spec;
  std::span<const std::byte> bytes;
};

/// One file, mapped and checked as a whole when it is opened: whatever the header says is inside the file, without overlap or
/// hole. Each defect is Error(kBadData) that names file and tensor. The views live as long as the file.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  [[nodiscard]] const std::filesystem::path& path() const { return file_->path(); }
  /// Ordered by name.
  [[nodiscard]] const std::map<std::string, SafetensorsView, std::less<>>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.contains(name); }
  /// Throws Error(kBadData) when there is none.
  [[nodiscard]] const SafetensorsView& at(std::string_view name) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, SafetensorsView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// All tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` names, in one table.
class SafetensorsModel {
 public:
  /// `path` is one of these files, or the directory that holds one. Refused: a shard outside the directory, one that is missing,
  /// a tensor in two shards, or in another one than the index says, or in none; and pickles (.bin, .pt), always.
  explicit SafetensorsModel(const std::filesystem::path& path);
  [[nodiscard]] const std::map<std::string, const SafetensorsView*, std::less<>>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.contains(name); }
  [[nodiscard]] const SafetensorsView& at(std::string_view name) const;

 private:
  void add(const std::filesystem::path& path, const std::string& shard, const std::map<std::string, std::string>* index);

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsView*, std::less<>> tensors_;
};

/// Writes one file, atomically. All tensors are declared first; their bytes follow in any order, each tensor's own in order. In
/// the file the widest elements come first, so that every tensor is aligned.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});
  /// The next bytes of a tensor: all of them, or a part.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// Throws when a tensor is incomplete.
  void commit();

 private:
  struct Slot {
    int64_t next = 0, end = 0;  // offsets in the file
  };
  AtomicFile file_;
  std::map<std::string, Slot, std::less<>> slots_;
};

/// Cuts tensors, in order, into shards of at most `shard_bytes` (a larger tensor has one to itself).
std::vector<std::vector<TensorSpec>> plan_shards(std::span<const TensorSpec> specs, int64_t shard_bytes);

/// `model.safetensors`, or `model-00001-of-00003.safetensors`.
std::string shard_name(int64_t index, int64_t count);

/// Writes `model.safetensors.index.json` into `directory`, as Hugging Face does.
void write_shard_index(const std::filesystem::path& directory, std::span<const std::vector<TensorSpec>> shards);

}  // namespace cistron::io
