#pragma once
// One model on one device, with its gradients and optimizer: what takes a step. It knows no files and no data; the trainer and
// the benchmark stand on it.
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cistron/core/step_state.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/sharing.h"
#include "cistron/ops/mxfp8_underflow.h"
#include "cistron/ops/queue.h"
#include "cistron/ops/timer.h"
#include "cistron/train/step_inputs.h"

namespace cistron::train {

struct EngineOptions {
  model::ModelConfig model;
  Device device;
  Precision precision = Precision::kF32;
  model::Recompute recompute = model::Recompute::kNone;
  model::Experts experts = model::Experts::kGrouped;
  model::Mxfp8Layers mxfp8;
  bool fuse = true;                ///< false: as Context::fuse
  bool require_fused = false;      ///< Error(kUsage) from `plan` where a layer's experts would run unfused
  int64_t micro_batch_tokens = 0;  ///< the most that this rank gets of one
  int64_t eval_batch_tokens = 0;   ///< the same of a validation batch; 0: no validation is planned for
  int64_t micro_batches = 1;       ///< in a step
  bool record = true;              ///< on a device with a queue: record a step once and replay it
  nn::Sharing sharing;             ///< the mesh, and this rank's place in it
  double headroom = 1.25;          ///< as Context::headroom
  nn::OptimizerStorage storage;    ///< of weights, gradients and moments; without gradients each parameter is updated in the
                                   ///< backward pass, on one rank, from one micro-batch, unclipped
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  ///< 0: no clipping
};

model::DecoderOptions decoder_options(const EngineOptions& options);

/// Bytes by kind, as a run on the meta device found them.
struct MemoryPlan {
  int64_t parameters = 0;  ///< masters and working copies
  int64_t gradients = 0;
  int64_t optimizer = 0;    ///< both moments
  int64_t gathered = 0;     ///< whole weights and gradients on their way between ranks
  int64_t activations = 0;  ///< the peak of everything else that a step holds for a while
  [[nodiscard]] int64_t total() const { return parameters + gradients + optimizer + gathered + activations; }
  /// "parameters 29.5 MB, gradients 29.5 MB, ..."
  [[nodiscard]] std::string report() const;
};

struct StepResult {
  double loss = 0.0;  ///< mean cross-entropy over the labels' weights
  model::RouterSummary router;
  double grad_norm = 0.0;  ///< before clipping
  bool finite = true;      ///< false: nothing was updated, nor will a later step of this engine update anything
};

class Engine {
 public:
  /// Runs a step and an evaluation on the meta device. Throws Error(kUsage) or Error(kOutOfSpace) for sizes beyond any machine.
  static MemoryPlan plan(const EngineOptions& options);
  /// What of each layer runs fused, and what refused the rest: Decoder::plan. Throws as `plan`.
  static std::string fusions(const EngineOptions& options);

  /// Takes exactly the planned memory of the device; Error(kOutOfSpace) says what was needed. `pool` and `mesh` must outlive the
  /// engine. With a mesh all its ranks make their engine together, and call the same functions in the same order.
  Engine(const EngineOptions& options, const MemoryPlan& plan, ThreadPool* pool, const dist::Mesh* mesh = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Masters drawn from `seed`, moments zero, step 0.
  void initialise(uint64_t seed);
  /// The step state of a new run, after weights and moments were set from outside.
  void restart();
  /// Forward, backward, clipping and update over the micro-batches of one global batch, of which this rank gives its parts, each
  /// of at most `micro_batch_tokens` tokens. `label_weight` is the sum of all ranks' loss weights; so is what it returns.
  StepResult step(std::span<const nn::Batch> micro_batches, double label_weight, double learning_rate);
  /// The same in two halves, so that the host need not wait: a device with a queue works while the host prepares the next step,
  /// of which two may be under way. Results come in the steps' order.
  void queue_step(std::span<const nn::Batch> micro_batches, double label_weight, double learning_rate);
  StepResult next_result();
  [[nodiscard]] int64_t under_way() const { return std::ssize(under_way_); }
  /// How many steps may be under way before the next is queued: 1, or 0 where steps are done at once.
  [[nodiscard]] int64_t ahead() const { return queue_ == nullptr ? 0 : 1; }
  /// Kernels in the recorded step; 0 where none is recorded.
  [[nodiscard]] int64_t launches() const { return recorded_ == nullptr ? 0 : recorded_->launches(); }
  /// Room for what is routed to an expert-parallel rank. A step or an evaluation that needs more plans again with more, takes
  /// that memory instead, and begins anew: no token is dropped.
  [[nodiscard]] double headroom() const { return options_.headroom; }
  /// One more step, its operations one by one and each timed; nothing is recorded and no step may be under way.
  std::vector<ops::TimedOperation> profile(std::span<const nn::Batch> micro_batches, double label_weight);
  /// After a step that was not finite, on the same micro-batches: the first module (or parameter's gradient) with a number that
  /// is not finite, on any rank. Changes no parameter.
  std::string find_nonfinite(std::span<const nn::Batch> micro_batches, double label_weight);

  /// What MXFP8 loses of each kind of operand, in the row-wise copies of a forward and backward pass over these micro-batches,
  /// after which nothing is updated. On one rank, where gradients are kept.
  struct Underflow {
    ops::Mxfp8Underflow weights, activations, gradients;
  };
  Underflow underflow(std::span<const nn::Batch> micro_batches, double label_weight);

  /// Sums over one batch, of which this rank gives its part, over all ranks: negative log-likelihood of the labels, and how many
  /// there are.
  struct Evaluation {
    double nll = 0.0;
    int64_t tokens = 0;
  };
  Evaluation evaluate(const nn::Batch& batch);

  [[nodiscard]] Context& context() { return ctx_; }
  [[nodiscard]] nn::LocalParameters& parameters() { return *parameters_; }
  [[nodiscard]] const nn::LocalParameters& parameters() const { return *parameters_; }
  /// Working copies from masters, after these were set from outside.
  void refresh_working() { parameters_->refresh_working(ctx_); }
  [[nodiscard]] StepState& state() { return state_; }
  [[nodiscard]] const StepState& state() const { return state_; }
  /// What the arenas held at most.
  [[nodiscard]] MemoryPlan peak() const;

 private:
  struct Arenas {
    nn::ParameterArenas parameters;
    std::shared_ptr<Arena> activations;
  };
  static Arenas meta_arenas();
  static Arenas planned_arenas(const MemoryPlan& plan, const EngineOptions& options);
  Engine(const EngineOptions& options, Arenas arenas, Device device, ThreadPool* pool, const dist::Mesh* mesh);

  void take_activations();
  void raise_headroom(double enough);
  void with_room(const std::function<void()>& run);
  void set_state(double label_weight, double learning_rate);
  void run_step();
  void launch();
  void backward();
  void evaluate_part(int64_t tokens);
  void sum_over_ranks(const Tensor& tensor) const;
  void gradient_norm();
  void guarded_update(std::span<const ops::AdamWTensor> tensors);
  void update_in_backward(const nn::LocalParameters::Entry& entry);
  void update();
  [[nodiscard]] std::vector<Tensor> results() const;
  [[nodiscard]] Tensor published(std::span<const Tensor> parts, int64_t slots) const;

  EngineOptions options_;
  Arenas arenas_;
  std::unique_ptr<ops::Queue> queue_;  // null: everything is done at once
  Context ctx_;
  model::Decoder decoder_;
  std::unique_ptr<nn::LocalParameters> parameters_;
  model::Losses losses_;
  Tensor nll_;
  Tensor squares_;  // of the gradients that were taken in the backward pass, in the order in which they came
  int64_t taken_ = 0;
  StepState state_, evaluation_;  // of an evaluation only its number counts
  StepInputs inputs_, evaluation_inputs_;
  Tensor published_, published_nll_;  // the host's, written by the device
  struct UnderWay {
    int64_t step;
    double label_weight;
  };
  std::deque<UnderWay> under_way_;
  std::unique_ptr<ops::Recording> recorded_;
  std::vector<int64_t> recorded_shape_;  // of the last step that was launched one by one
};

}  // namespace cistron::train
