#pragma once
// A checkpoint is a directory, whole or absent, and belongs to no layout of ranks:
//   manifest.json             see checkpoint_manifest.h
//   state.json                step, tokens, seed, what the data was, the tokenizer
//   config.toml               the run's configuration, all keys
//   parameters*.safetensors   masters by global name, F32, or BF16 where the run has none beside its weights; from several ranks
//   one
//                             file each, parameters-00002.safetensors
//   optimizer*.safetensors    "NAME.m" and "NAME.v", F32, BF16, or U8: codes, with "NAME.m.scale" and "NAME.v.scale"; absent in
//   an
//                             imported model
// A tensor is a whole parameter or some rows of it, as the manifest says; together the files hold each row once.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "cistron/core/step_state.h"
#include "cistron/dist/communicator.h"
#include "cistron/io/safetensors.h"
#include "cistron/train/checkpoint_manifest.h"
#include "cistron/train/checkpoint_slices.h"
#include "cistron/train/config.h"

namespace cistron::train {

struct TrainingState {
  int64_t step = 0;    ///< steps done
  int64_t tokens = 0;  ///< tokens trained on: the position in the stream of data
  uint64_t store_fingerprint = 0;
  bool validation_due = false;  ///< a signal came before this step's validation was through
  StepState step_state;
};

struct CheckpointInfo {
  RunConfig config;
  std::string tokenizer;  ///< its name; empty: unknown
  TrainingState state;
};

/// Writes `directory`, atomically; one that exists (and was found broken) is replaced where `replace` is set. All ranks of
/// `world` call it, each with its slices, and write at once; it is there when all of it is on the disk. Where one fails, all
/// throw and nothing stays behind.
void save_checkpoint(Context& ctx, const std::filesystem::path& directory, const CheckpointInfo& info,
                     const std::vector<ParameterSlice>& slices, bool replace, dist::Communicator& world);

class Checkpoint {
 public:
  /// Reads every byte and checks it; of several ranks that open it together each reads its part of the files. Throws
  /// Error(kBadData) naming the file and what is wrong with it: missing, cut short, extra, a wrong checksum, another version.
  explicit Checkpoint(const std::filesystem::path& directory, int ranks = 1, int rank = 0);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const CheckpointInfo& info() const { return info_; }
  [[nodiscard]] bool has_optimizer() const { return has_optimizer_; }
  /// Elements [first, first + out.size()) of a parameter. Throws Error(kBadData) where it has none.
  void read(const std::string& parameter, int64_t first, std::span<float> out) const { read(parameter, "", first, out); }
  /// Fills masters (and moments, where both sides have them) with what they hold, reading nothing else. Throws Error(kBadData) on
  /// a parameter that is missing, left over, or of another shape, Error(kUsage) where one side has 8-bit moments and the other
  /// has not; other dtypes are converted, to nearest. Working copies are the caller's to refresh.
  void load(Context& ctx, nn::LocalParameters& parameters) const;

 private:
  struct Piece {
    int64_t begin = 0, count = 0;  // elements
    const io::SafetensorsFile* values;
    const io::SafetensorsFile* moments;  // or null
  };
  struct Whole {
    Shape shape;
    std::vector<Piece> pieces;  // in order, from the first element to the last
  };
  void add(const Manifest::Slice& slice);
  void check_complete();
  const io::SafetensorsFile* open(const std::string& file);
  const Whole& find(const std::string& parameter) const;
  template <class Take>
  void for_parts(const Whole& whole, const std::string& name, int64_t width, int64_t first, int64_t count,
                 const Take& take) const;
  void read(const std::string& parameter, const std::string& suffix, int64_t first, std::span<float> out) const;
  void fill(Context& ctx, const std::string& parameter, const std::string& suffix, int64_t first_row, const Tensor& tensor) const;
  void fill_bytes(Context& ctx, const std::string& parameter, const std::string& suffix, int64_t first_row,
                  const Tensor& tensor) const;
  void load_moments(Context& ctx, const nn::LocalParameters::Entry& entry) const;

  std::filesystem::path directory_;
  CheckpointInfo info_;
  bool has_optimizer_ = true;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
  std::map<std::string, Whole> parameters_;
};

}  // namespace cistron::train
