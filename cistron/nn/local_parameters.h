#pragma once
// All parameters on one rank: leases and sinks are views of whole arrays.
#include <string>
#include <unordered_map>
#include <vector>

#include "cistron/core/context.h"

namespace cistron::nn {

/// Where each kind of memory comes from. On the meta device they plan.
struct ParameterArenas {
  std::shared_ptr<Arena> parameters;  // masters, and bf16 working copies
  std::shared_ptr<Arena> gradients;   // null: no gradients (inference)
  std::shared_ptr<Arena> optimizer;   // the two moments; null: none
};

class LocalParameters final : public ParameterAccess {
 public:
  struct Entry {
    const Parameter* parameter;
    Tensor master;   // f32
    Tensor working;  // bf16, where the precision asks for it and the parameter allows; otherwise undefined
    Tensor grad;     // f32
    Tensor m, v;     // f32
    bool has_grad = false;
  };

  /// Uninitialised values. The parameters must outlive this object.
  LocalParameters(const std::vector<const Parameter*>& parameters, Precision precision, const ParameterArenas& arenas);

  /// Masters drawn from a counter-based generator keyed by seed, parameter name and global index; moments zero.
  void initialise(Context& ctx, uint64_t seed);
  /// Working copies from masters, after these were set from outside.
  void refresh_working(Context& ctx);
  /// Gradients of the last step are void: the next sink of each parameter overwrites.
  void begin_step();
  /// Throws, naming the parameter, unless every one got a gradient since `begin_step`.
  void check_all_have_grads() const;

  [[nodiscard]] std::vector<Entry>& entries() { return entries_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Throws where there is none.
  [[nodiscard]] Entry& find(const std::string& name);

  Tensor weights(const Parameter& parameter) override;
  GradSink grad(const Parameter& parameter) override;
  void grad_ready(const Parameter& /*parameter*/) override {}

 private:
  Entry& entry(const Parameter& parameter);

  std::vector<Entry> entries_;
  std::unordered_map<const Parameter*, size_t> index_;
};

}  // namespace cistron::nn
