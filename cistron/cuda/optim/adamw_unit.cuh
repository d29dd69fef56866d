#pragma once
// The update of a unit of 128 elements of a row, by a warp, four in each lane: of every array 16, 8 or 4 bytes that lie side by
// side. A unit is also what shares a scale where moments are codes.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/philox.cuh"
#include "cistron/cuda/device/ptx.cuh"
#include "cistron/ops/optimizer.h"

namespace cistron::cuda::optim {

constexpr int kWidth = ops::kStateBlock / device::kWarp;

using Four = device::Floats<kWidth>;

struct UpdatedTensor {
  void* master;  // f32, or bf16 where there is none
  const float* grad;
  void *m, *v;
  uint8_t *m_scale, *v_scale;
  __nv_bfloat16* working;  // or null
  uint64_t stream;
  int64_t first_row;
  int64_t elements;  // units
  uint32_t width, units_of_row;
  device::Divisor row{1};  // by its units
  int32_t first_block;
  float weight_decay;
  bool bf16_master;
  bool wide;  // chunks of four are possible
};

struct Numbers {
  float beta1, beta2, eps;
};

/// Within 2^-23 of the root; a subnormal's is 0.
__device__ __forceinline__ float root(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Within 2^-23 of 1 / x.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Update {
  float clip, beta1, new1, beta2, new2;  // how much of each moment stays, and of the gradient comes in
  float rate, inverse2, eps, shrink;     // the learning rate over m's bias correction; v's; what decays

  __device__ Update(const Numbers& n, const StepState& state, float weight_decay)
      : clip(state.clip_factor),
        beta1(n.beta1),
        new1(1.0F - n.beta1),
        beta2(n.beta2),
        new2(1.0F - n.beta2),
        rate(state.learning_rate / state.bias_correction1),
        inverse2(1.0F / state.bias_correction2),
        eps(n.eps),
        shrink(state.learning_rate * weight_decay) {}
  __device__ __forceinline__ void operator()(float grad, float& p, float& m, float& v) const {
    const float g = grad * clip;
    m = beta1 * m + new1 * g;
    v = beta2 * v + new2 * (g * g);
    p -= shrink * p;
    p -= rate * m * reciprocal(root(v * inverse2) + eps);
  }
};

/// A lane's elements.
struct Place {
  uint32_t unit, row, block;  // of 128 elements of the row
  int64_t at;
  int count;  // up to four; none behind a row's end
  bool wide;

  /// `as_wide`: no more than the tensor is; a constant spares branches.
  __device__ __forceinline__ Place(const UpdatedTensor& t, uint32_t row_, uint32_t block_, bool as_wide)
      : unit(row_ * t.units_of_row + block_), row(row_), block(block_), wide(as_wide) {
    at = static_cast<int64_t>(uint64_t{row} * t.width + column());
    const int left = column() < t.width ? static_cast<int>(min(t.width - column(), uint32_t{kWidth})) : 0;
    count = wide && left > 0 ? kWidth : left;
  }
  static __device__ __forceinline__ Place of_unit(const UpdatedTensor& t, uint32_t number, bool as_wide) {
    const uint32_t row = t.row.quotient(number);
    return {t, row, number - row * t.units_of_row, as_wide};
  }
  [[nodiscard]] __device__ uint32_t column() const {
    return block * uint32_t{ops::kStateBlock} + static_cast<uint32_t>(device::lane_index()) * kWidth;
  }
};

/// A lane's elements of an array, as they lie: words, since of smaller pieces the compiler makes one register each, and waits for
/// them as soon as they are asked for.
template <class T>
struct alignas(sizeof(T) * kWidth) Packed {
  uint32_t word[sizeof(T) * kWidth / sizeof(uint32_t)] = {};

  __device__ __forceinline__ char* element(int e) { return reinterpret_cast<char*>(word) + e * sizeof(T); }
};

template <class T>
__device__ __forceinline__ Packed<T> load(const T* data, const Place& place) {
  Packed<T> out;
  if (place.wide) {
    if (place.count > 0) out = *reinterpret_cast<const Packed<T>*>(data + place.at);
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (e >= place.count) continue;
      const T value = data[place.at + e];
      memcpy(out.element(e), &value, sizeof(T));
    }
  }
  return out;
}

template <class T>
__device__ __forceinline__ void store(T* data, const Place& place, Packed<T> values) {
  if (place.wide) {
    if (place.count > 0) *reinterpret_cast<Packed<T>*>(data + place.at) = values;
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (e >= place.count) continue;
      T value;
      memcpy(&value, values.element(e), sizeof(T));
      data[place.at + e] = value;
    }
  }
}

__device__ __forceinline__ Four floats(const Packed<float>& in) {
  Four out;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out.at[e] = __uint_as_float(in.word[e]);
  return out;
}
__device__ __forceinline__ Four floats(const Packed<__nv_bfloat16>& in) {
  Four out;
#pragma unroll
  for (int e = 0; e < kWidth; e += 2) {
    out.at[e] = __uint_as_float(in.word[e / 2] << 16);
    out.at[e + 1] = __uint_as_float(in.word[e / 2] & 0xffff0000U);
  }
  return out;
}
__device__ __forceinline__ Packed<float> packed(const Four& values) {
  Packed<float> out;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out.word[e] = __float_as_uint(values.at[e]);
  return out;
}
__device__ __forceinline__ Packed<__nv_bfloat16> rounded(const Four& values) {
  Packed<__nv_bfloat16> out;
  const auto nearest = device::rounded<__nv_bfloat16>(values);
  memcpy(out.word, nearest.at, sizeof(out.word));
  return out;
}

using Words = std::array<uint32_t, 4>;

__device__ __forceinline__ Words words_of(const UpdatedTensor& t, const Place& place, int64_t step, uint32_t use) {
  return device::philox(ops::rounding_counter(step, t.first_row + place.row, place.column(), use), ops::rounding_key(t.stream));
}

/// Each rounded up by the half of its word that begins at `shift`, as ops::round_to_bf16 does. A NaN keeps its upper half, which
/// makes one too: arithmetic gives quiet ones.
__device__ __forceinline__ Packed<__nv_bfloat16> to_bf16(const Four& values, const Words& words, int shift) {
  uint32_t bits[kWidth];
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float x = values.at[e];
    bits[e] = __float_as_uint(x);
    if (x == x) bits[e] += words[e] >> shift & 0xffffU;
  }
  Packed<__nv_bfloat16> out;
#pragma unroll
  for (int e = 0; e < kWidth; e += 2) out.word[e / 2] = __byte_perm(bits[e], bits[e + 1], 0x7632);  // their upper halves
  return out;
}

struct FirstMoment {
  static constexpr int kShift = 0;
  static __device__ float value(uint8_t code) { return ops::first_moment_value(code); }
  static __device__ uint8_t code(float scaled, uint32_t random) { return ops::first_moment_code(scaled, random); }
};
struct SecondMoment {
  static constexpr int kShift = 16;
  static __device__ float value(uint8_t code) { return ops::second_moment_value(code); }
  static __device__ uint8_t code(float scaled, uint32_t random) { return ops::second_moment_code(scaled, random); }
};

template <class Moment, class T>
__device__ __forceinline__ Four unpacked(const Packed<T>& in, uint8_t scale) {
  if constexpr (sizeof(T) > 1) {
    return floats(in);
  } else {
    const float factor = ops::e8m0_to_float(scale);
    Four out;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out.at[e] = factor * Moment::value(static_cast<uint8_t>(in.word[0] >> 8 * e));
    return out;
  }
}

/// The whole warp calls it.
template <class Moment, class T>
__device__ __forceinline__ void pack(T* data, uint8_t* scales, const Place& place, const Four& values, const Words& words) {
  if constexpr (std::is_same_v<T, float>) {
    store(data, place, packed(values));
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    store(data, place, to_bf16(values, words, Moment::kShift));
  } else {
    uint32_t most = 0;  // magnitudes compare as their bits
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (e < place.count) most = max(most, __float_as_uint(values.at[e]) & 0x7fffffffU);
    const uint8_t scale = ops::state_scale(__uint_as_float(__reduce_max_sync(~0U, most)));
    const float inverse = ops::e8m0_inverse(scale);
    Packed<uint8_t> codes;
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      codes.word[0] |= uint32_t{Moment::code(values.at[e] * inverse, words[e] >> Moment::kShift & 0xffffU)} << 8 * e;
    store(data, place, codes);
    if (device::lane_index() == 0) scales[place.unit] = scale;
  }
}

/// A unit as it lies in memory, so that nothing waits for a load before all of them are on their way.
template <class T>
struct In {
  Packed<float> grad, master;  // of bf16 the first half
  Packed<T> m, v;
  uint8_t m_scale, v_scale;
};

template <class T>
__device__ __forceinline__ In<T> load_unit(const UpdatedTensor& t, const Place& place) {
  In<T> in;
  in.grad = load(t.grad, place);
  if (t.bf16_master) {
    const auto master = load(static_cast<const __nv_bfloat16*>(t.master), place);
    in.master.word[0] = master.word[0], in.master.word[1] = master.word[1];
  } else {
    in.master = load(static_cast<const float*>(t.master), place);
  }
  in.m = load(static_cast<const T*>(t.m), place);
  in.v = load(static_cast<const T*>(t.v), place);
  if constexpr (sizeof(T) == 1) {
    in.m_scale = t.m_scale[place.unit];
    in.v_scale = t.v_scale[place.unit];
  }
  return in;
}

/// Gives the new weights.
template <class T>
__device__ __forceinline__ Four update_unit(const UpdatedTensor& t, const Update& update, const Place& place, const In<T>& in,
                                            int64_t step) {
  Four p = t.bf16_master ? floats(Packed<__nv_bfloat16>{{in.master.word[0], in.master.word[1]}}) : floats(in.master);
  Four m = unpacked<FirstMoment>(in.m, in.m_scale), v = unpacked<SecondMoment>(in.v, in.v_scale);
  const Four grad = floats(in.grad);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) update(grad.at[e], p.at[e], m.at[e], v.at[e]);
  Words words{};
  if constexpr (sizeof(T) < sizeof(float)) words = words_of(t, place, step, 0);
  pack<FirstMoment>(static_cast<T*>(t.m), t.m_scale, place, m, words);
  pack<SecondMoment>(static_cast<T*>(t.v), t.v_scale, place, v, words);
  if (t.bf16_master) {
    store(static_cast<__nv_bfloat16*>(t.master), place, to_bf16(p, words_of(t, place, step, 1), 0));
    return p;
  }
  store(static_cast<float*>(t.master), place, packed(p));
  if (t.working != nullptr) store(t.working, place, rounded(p));
  return p;
}

inline UpdatedTensor updated_tensor(const ops::AdamWTensor& t) {
  const ops::StateRows rows = ops::state_rows(t);
  CISTRON_CHECK(rows.units() < int64_t{1} << 31, "[adamw] {} elements are more than one launch takes", t.master.numel());
  bool wide = rows.width % kWidth == 0;
  for (const Tensor* tensor : {&t.master, &t.grad, &t.m, &t.v}) wide = wide && device::fits_chunks(*tensor, 0, kWidth);
  if (t.working.defined()) wide = wide && device::fits_chunks(t.working, 0, kWidth);
  return {.master = t.master.raw(),
          .grad = device::pointer<const float>(t.grad),
          .m = t.m.raw(),
          .v = t.v.raw(),
          .m_scale = device::pointer<uint8_t>(t.m_scale),
          .v_scale = device::pointer<uint8_t>(t.v_scale),
          .working = device::pointer<__nv_bfloat16>(t.working),
          .stream = t.stream,
          .first_row = t.first_row,
          .elements = rows.units(),
          .width = narrow<uint32_t>(rows.width),
          .units_of_row = narrow<uint32_t>(rows.units_of_row()),
          .row = device::Divisor(rows.units_of_row()),
          .first_block = 0,
          .weight_decay = t.weight_decay,
          .bf16_master = t.master.dtype() == DType::kBF16,
          .wide = wide};
}

}  // namespace cistron::cuda::optim
