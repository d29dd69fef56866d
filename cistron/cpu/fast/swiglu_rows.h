#pragma once
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

/// `width` columns of one routed row of ops/swiglu.h.
template <class T>
struct SwigluRow {
  const T* gate;
  const T* up;
  float weight;
  int64_t width;

  void forward(T* y) const {
    for_lanes(width, [this, y](Lanes l) {
      const F16 g = l.load(gate);
      l.store(y, g * sigmoid(g) * l.load(up) * weight);
    });
  }

  /// Gives this row's part of dweight; writes the activation too unless `act` is null, which may be `dy`.
  float backward(const T* dy, T* dgate, T* dup, T* act = nullptr) const {
    F16 dweight{};
    for_lanes(width, [&](Lanes l) {
      const F16 d = l.load(dy), g = l.load(gate), u = l.load(up);
      const F16 sig = sigmoid(g);
      const F16 silu = g * sig;
      l.store(dgate, d * weight * u * (sig * (1.0F + g * (1.0F - sig))));
      l.store(dup, d * weight * silu);
      if (act != nullptr) l.store(act, silu * u * weight);
      dweight += d * silu * u;
    });
    return horizontal_sum(dweight);
  }
};

}  // namespace cistron::cpu
