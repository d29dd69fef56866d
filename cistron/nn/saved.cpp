#include "cistron/nn/saved.h"

#include <utility>

#include "cistron/core/error.h"

namespace cistron::nn {

void Saved::push(std::string name, Tensor tensor) { entries_.push_back({std::move(name), std::move(tensor)}); }

void Saved::push(const std::string& name, const ops::Groups& groups) {
  push(name + ".starts", groups.starts);
  push(name + ".counts", groups.counts);
  push(name + ".source_row", groups.source_row);
  push(name + ".weight", groups.weight);
  push(name + ".token_rows", groups.token_rows);
}

void Saved::push(const std::string& name, const MxOperand& activation) {
  push(name + ".elements", activation.elements);
  push(name + ".scales", activation.scales);
}

Tensor Saved::pop(const std::string& name) {
  CISTRON_CHECK(!entries_.empty(), "[saved] '{}' is asked for and nothing is left", name);
  CISTRON_CHECK(entries_.back().name == name, "[saved] '{}' is asked for and '{}' is on top", name, entries_.back().name);
  Tensor tensor = std::move(entries_.back().tensor);
  entries_.pop_back();
  return tensor;
}

ops::Groups Saved::pop_groups(const std::string& name) {
  ops::Groups groups;
  groups.token_rows = pop(name + ".token_rows");
  groups.weight = pop(name + ".weight");
  groups.source_row = pop(name + ".source_row");
  groups.counts = pop(name + ".counts");
  groups.starts = pop(name + ".starts");
  return groups;
}

MxOperand Saved::pop_mx(const std::string& name, int64_t group) {
  MxOperand activation{.group = group};
  activation.scales = pop(name + ".scales");
  activation.elements = pop(name + ".elements");
  return activation;
}

int64_t Saved::bytes() const {
  int64_t sum = 0;
  for (const auto& entry : entries_) sum += entry.tensor.bytes();
  return sum;
}

std::string Saved::report() const {
  std::string text;
  for (const auto& [name, tensor] : entries_)
    text += fmt::format("{:40} {:>20} {:5} {:>12}\n", name, to_string(tensor.shape()), name_of(tensor.dtype()), tensor.bytes());
  return text;
}

}  // namespace cistron::nn
