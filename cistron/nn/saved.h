#pragma once
// What forward keeps for backward, in plain sight: a stack of named tensors. Backward pops in reverse order and says what it
// expects, so a mismatch is found at once.
#include <string>
#include <vector>

#include "cistron/ops/groups.h"

namespace cistron::nn {

class Saved {
 public:
  void push(std::string name, Tensor tensor);
  void push(const std::string& name, const ops::Groups& groups);
  void push(const std::string& name, const MxOperand& activation);
  /// Throws unless `name` is on top.
  Tensor pop(const std::string& name);
  ops::Groups pop_groups(const std::string& name);
  MxOperand pop_mx(const std::string& name, int64_t group);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Bytes of everything held (a tensor saved twice counts twice).
  [[nodiscard]] int64_t bytes() const;
  /// A line for each tensor: name, shape, dtype, bytes.
  [[nodiscard]] std::string report() const;

 private:
  struct Entry {
    std::string name;
    Tensor tensor;
  };
  std::vector<Entry> entries_;
};

}  // namespace cistron::nn
