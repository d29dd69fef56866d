#include "cistron/train/checkpoint_slices.h"

#include "cistron/ops/copy.h"

namespace cistron::train {

std::vector<ParameterSlice> slices_of(const nn::LocalParameters& parameters) {
  std::vector<ParameterSlice> slices;
  for (const auto& entry : parameters.entries()) {
    const dist::Range owned = entry.rows.owned;
    if (owned.count == 0) continue;
    const auto part = [&](const Tensor& tensor) { return tensor.defined() ? entry.owned(tensor) : Tensor(); };
    slices.push_back({.name = entry.parameter->name,
                      .shape = entry.parameter->shape,
                      .begin = entry.first_row() + owned.begin - entry.rows.held.begin,
                      .count = owned.count,
                      .master = part(entry.master),
                      .m = part(entry.m),
                      .v = part(entry.v),
                      .m_scale = part(entry.m_scale),
                      .v_scale = part(entry.v_scale)});
  }
  return slices;
}

std::vector<ParameterSlice> copy_of(Context& ctx, const std::vector<ParameterSlice>& slices) {
  const auto arena = Arena::growing("checkpoint", Device{}, host_memory());
  std::vector<ParameterSlice> copies = slices;
  for (ParameterSlice& slice : copies)
    for (Tensor* tensor : {&slice.master, &slice.m, &slice.v, &slice.m_scale, &slice.v_scale}) {
      if (!tensor->defined()) continue;
      const Tensor copy = Tensor::empty(arena, tensor->shape(), tensor->dtype());
      ops::copy(ctx, {.x = *tensor, .out = copy});
      *tensor = copy;
    }
  return copies;
}

}  // namespace cistron::train
