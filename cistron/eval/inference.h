#pragma once
// A model with nothing but its weights, for forward passes over batches of up to one fixed size.
#include <memory>
#include <span>

#include "cistron/data/pack.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/local_parameters.h"

namespace cistron::eval {

struct InferenceOptions {
  model::ModelConfig model;
  Device device;
  Precision precision = Precision::kF32;
  model::Mxfp8Layers mxfp8;
  int64_t batch_tokens = 0;
};

class Inference {
 public:
  /// Plans and takes the memory. `pool` must outlive it.
  Inference(const InferenceOptions& options, ThreadPool* pool);
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  [[nodiscard]] const InferenceOptions& options() const { return options_; }
  /// The masters are the caller's to fill, then `refresh_working`.
  [[nodiscard]] Context& context() { return ctx_; }
  [[nodiscard]] nn::LocalParameters& parameters() { return *parameters_; }
  void refresh_working() { parameters_->refresh_working(ctx_); }

  /// How many tokens a batch of `tokens` is padded to: on a GPU always `batch_tokens`.
  [[nodiscard]] int64_t padded(int64_t tokens) const;
  /// The negative log-likelihood of each label, 0 where there is none. `batch` is padded. The span is valid until the next call.
  std::span<const float> nll(const data::PackedBatch& batch);

 private:
  struct Arenas {
    std::shared_ptr<Arena> parameters, activations;
  };
  Inference(const InferenceOptions& options, const Arenas& arenas, Device device, ThreadPool* pool);
  static Arenas planned_arenas(const InferenceOptions& options);
  void forward(const nn::Batch& batch, const Tensor& nll);
  nn::Batch on_device(const nn::Batch& batch);

  InferenceOptions options_;
  Context ctx_;
  model::Decoder decoder_;
  std::unique_ptr<nn::LocalParameters> parameters_;
  model::Losses losses_;
  Tensor nll_;
  nn::Batch batch_;              // the device's, where that is not the CPU
  std::vector<float> host_nll_;  // then too
};

}  // namespace cistron::eval
