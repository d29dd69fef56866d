#pragma once
// Everything an operation or module needs besides its operands, passed explicitly. There is no global mutable state.
#include <functional>
#include <memory>
#include <string_view>

#include "cistron/core/mx_tensor.h"
#include "cistron/core/operation_timer.h"
#include "cistron/core/parameter.h"
#include "cistron/core/tensor.h"
#include "cistron/core/thread_pool.h"

struct CUstream_st;

namespace cistron::dist {
class Mesh;
}

namespace cistron {

struct Context;

/// Where a gradient goes: fp32, shaped as the parameter's local part.
struct GradSink {
  Tensor grad;
  bool accumulate = false;  ///< add to what is there; otherwise overwrite it
};

/// Lends weights and takes gradients. On one rank both are views of whole arrays; under FSDP a lease gathers ahead of use and
/// frees behind it, and a sink is reduced over the ranks when it is closed.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  /// The values in the recipe's dtype, valid for as long as the returned tensor lives.
  virtual Tensor weights(const Parameter& parameter) = 0;
  /// Those of a parameter that `Context::in_mxfp8` names: the copy that a product contracts, quantised from the fp32 values.
  virtual MxOperand mx_weights(Context& ctx, const Parameter& parameter, MxCopy copy) = 0;
  virtual GradSink grad(const Parameter& parameter) = 0;
  /// No more gradient for `parameter` comes from this backward pass.
  virtual void grad_ready(const Parameter& parameter) = 0;
};

/// The recipe: the dtype of activations and of working copies of weights. MXFP8 is bf16 but for the products of the weights that
/// `Parameter::mx_sections` names, with a scale for 128 values or for 32.
enum class Precision : uint8_t { kF32, kBF16, kMxfp8, kMxfp8Group32 };

constexpr DType activation_dtype(Precision precision) { return precision == Precision::kF32 ? DType::kF32 : DType::kBF16; }
/// Values that share a scale; 0 where nothing is in MXFP8.
constexpr int64_t mx_group(Precision precision) {
  return precision == Precision::kMxfp8 ? 128 : precision == Precision::kMxfp8Group32 ? 32 : 0;
}
constexpr bool in_mxfp8(Precision precision, const Parameter& parameter) {
  return mx_group(precision) > 0 && parameter.mx_sections > 0;
}

/// Whose kernels run the grouped products on CUDA: the card's own where it has some, or those of every card since sm_80.
enum class GemmKernels : uint8_t { kAuto, kPortable };

struct Context {
  Device device;
  Device planned;                         ///< on the meta device: the one whose memory is planned
  std::shared_ptr<Arena> arena;           ///< activations and temporaries
  ThreadPool* pool = nullptr;             ///< null: everything on the calling thread
  ParameterAccess* parameters = nullptr;  ///< null: no module may be run
  CUstream_st* stream = nullptr;          ///< on CUDA, the queue that everything runs on; null: the default one
  Precision precision = Precision::kF32;
  int sm_budget = 0;  ///< multiprocessors a persistent kernel may take; 0: all
  GemmKernels gemm = GemmKernels::kAuto;
  bool fuse = true;                  ///< false: every operation of a Sequential by itself, to compare with
  const dist::Mesh* mesh = nullptr;  ///< the ranks that work on one model together; null: this one alone
  double headroom = 1.25;            ///< room for what is routed to an expert-parallel rank: this times the mean
  OperationTimer* timer = nullptr;   ///< told of each operation, where somebody measures
  /// Called with each module's output and input gradient, in order, where somebody looks for the first bad number; usually empty.
  std::function<void(std::string_view module, const Tensor& value)> observe;

  /// The device for which memory is laid out: row alignments and scratch are the same in a plan and in the run that it is for.
  [[nodiscard]] Device target() const { return device.is_meta() ? planned : device; }
  [[nodiscard]] DType activation_dtype() const { return cistron::activation_dtype(precision); }
  [[nodiscard]] int64_t mx_group() const { return cistron::mx_group(precision); }
  [[nodiscard]] bool in_mxfp8(const Parameter& parameter) const { return cistron::in_mxfp8(precision, parameter); }
  [[nodiscard]] Tensor empty(const Shape& shape, DType dtype) const { return Tensor::empty(arena, shape, dtype); }
  [[nodiscard]] Tensor empty(const Shape& shape) const { return empty(shape, activation_dtype()); }

  [[nodiscard]] Tensor weights(const Parameter& parameter) const { return parameters->weights(parameter); }
  [[nodiscard]] MxOperand mx_weights(const Parameter& parameter, MxCopy copy) {
    return parameters->mx_weights(*this, parameter, copy);
  }
  [[nodiscard]] GradSink grad(const Parameter& parameter) const { return parameters->grad(parameter); }
  void grad_ready(const Parameter& parameter) const { parameters->grad_ready(parameter); }

  void report(std::string_view module, const Tensor& value) const {
    if (observe) observe(module, value);
  }

  /// `ThreadPool::parallel_for`, or a plain loop where there is no pool.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& task) const;
};

}  // namespace cistron
