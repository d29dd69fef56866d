#pragma once
// A model that writes: its weights, and for each slot the keys and values of the sequence in it.
#include <memory>
#include <span>
#include <vector>

#include "cistron/data/pack.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/local_parameters.h"

namespace cistron::eval {

struct CachedModelOptions {
  model::ModelConfig model;
  Precision precision = Precision::kF32;
  int64_t slots = 0;           ///< sequences at a time
  int64_t capacity = 0;        ///< tokens of a sequence, at most the model's context
  int64_t prefill_tokens = 0;  ///< of a batch of prompts, a power of two
};

class CachedModel {
 public:
  /// Plans and takes the memory, on the CPU. `pool` must outlive it. Throws Error(kOutOfSpace) where the machine has less.
  CachedModel(const CachedModelOptions& options, ThreadPool* pool);
  ~CachedModel();
  CachedModel(const CachedModel&) = delete;
  CachedModel& operator=(const CachedModel&) = delete;

  /// Bytes that one slot takes.
  static int64_t bytes_per_slot(const model::ModelConfig& model, Precision precision, int64_t capacity);

  [[nodiscard]] const CachedModelOptions& options() const { return options_; }
  [[nodiscard]] Context& context() { return ctx_; }
  /// The masters are the caller's to fill, then `refresh_working`.
  [[nodiscard]] nn::LocalParameters& parameters() { return *parameters_; }
  void refresh_working() { parameters_->refresh_working(ctx_); }

  struct Prompts {
    Tensor logits;               // [S, V] f32 after the last token of each sequence
    std::span<const float> nll;  // of each label, 0 where there is none
  };
  /// Sequence s begins in slots[s]; at most `prefill_tokens` tokens, no sequence empty. The results are valid until the next
  /// call.
  Prompts prefill(data::PackedBatch prompts, std::span<const int32_t> slots);

  /// Token i goes on with the sequence in slots[i], at positions[i]; slots differ. Gives logits [N, V] f32, valid until the next
  /// call.
  struct Next {
    std::vector<int32_t> tokens, slots, positions;
  };
  Tensor decode(const Next& next);

  /// On the model's threads.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& task) const { ctx_.parallel_for(count, task); }

 private:
  struct Arenas {
    std::shared_ptr<Arena> parameters, caches, activations;
  };
  CachedModel(const CachedModelOptions& options, const Arenas& arenas, Device device, ThreadPool* pool);
  static Arenas planned_arenas(const CachedModelOptions& options);
  void plan();
  void run_prefill(const nn::Batch& batch, const Tensor& last_rows);
  void run_decode(const nn::Batch& batch);

  CachedModelOptions options_;
  Context ctx_;
  model::Decoder decoder_;
  std::unique_ptr<nn::LocalParameters> parameters_;
  std::vector<Tensor> caches_;              // a layer each
  Tensor normed_, logits_, nll_, nll_sum_;  // of the last call
};

}  // namespace cistron::eval
