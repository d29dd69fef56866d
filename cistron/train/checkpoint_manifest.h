#pragma once
// manifest.json: version, every other file with its bytes and XXH64, and which slice of which parameter lies where. It is sealed
// with its own checksum.
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cistron/core/shape.h"

namespace cistron::train {

struct Manifest {
  struct File {
    std::string name;
    int64_t bytes = 0;
    std::string xxh64;
  };
  struct Slice {
    std::string parameter;
    Shape shape;                   ///< of the whole parameter
    int64_t begin = 0, count = 0;  ///< as ParameterSlice
    std::string values;            ///< the file with the tensor NAME
    std::string moments;           ///< the file with NAME.m and NAME.v; empty: there are none
  };
  std::vector<File> files;
  std::vector<Slice> slices;

  static constexpr const char* kName = "manifest.json";
  static constexpr int kVersion = 2;

  /// Of the ranks' parts: everything of all.
  void add(const Manifest& part);
};

/// The checksum and size of a file of `directory`.
Manifest::File describe_file(const std::filesystem::path& file);

/// What one rank tells the first one, and back.
std::string to_text(const Manifest& part);
Manifest from_text(const std::string& text, const std::filesystem::path& where);

void write_manifest(const std::filesystem::path& directory, const Manifest& manifest);

/// Throws Error(kBadData) naming the file and what is wrong with it.
Manifest read_manifest(const std::filesystem::path& directory);

/// That exactly the manifest's files are there, of their sizes, apart from hidden ones, which other programs leave behind; and
/// reads every byte of every `parts`-th, beginning with number `part`, so that ranks share the reading. Throws as read_manifest.
void verify_files(const std::filesystem::path& directory, const Manifest& manifest, int parts, int part);

/// Throws Error(kBadData): this checkpoint cannot be trusted.
[[noreturn]] void refuse_checkpoint(const std::string& what, const std::filesystem::path& where);

/// A file of a checkpoint as text.
std::string read_text(const std::filesystem::path& path);
/// "00000000deadbeef"
std::string hex(uint64_t value);

}  // namespace cistron::train
