// The update in units of at most 128 elements of a row: what is not f32 is unpacked into f32 beside it and packed again.
#include <array>
#include <cmath>

#include "cistron/core/rng.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/tensor_pieces.h"
#include "cistron/cpu/fast/vec_math.h"
#include "cistron/ops/optimizer.h"

namespace cistron::cpu {

namespace {

using ops::kStateBlock;
using Room = std::array<float, kStateBlock>;
using Words = std::array<uint32_t, kStateBlock>;

struct Unit {
  int64_t row, column, begin, count;  // of the row's elements, the first of the tensor's
  int64_t number;                     // of the tensor's
};

Unit unit_of(const ops::StateRows& rows, int64_t number) {
  const int64_t row = number / rows.units_of_row(), column = (number - row * rows.units_of_row()) * kStateBlock;
  return {row, column, row * rows.width + column, std::min(kStateBlock, rows.width - column), number};
}

Words words_of(const ops::AdamWTensor& t, const Unit& unit, int64_t step, uint32_t use) {
  Words words;
  const auto key = ops::rounding_key(t.stream);
  for (int64_t i = 0; i < unit.count; i += 4) {
    const auto four = philox(ops::rounding_counter(step, t.first_row + unit.row, unit.column + i, use), key);
    std::ranges::copy(four, words.begin() + i);
  }
  return words;
}

// Rounds up by the half of each word that begins at `shift`.
void pack(bf16* to, const Room& from, int64_t count, const Words& words, int shift) {
  for (int64_t i = 0; i < count; ++i) {
    const auto j = static_cast<size_t>(i);
    to[i].bits = ops::round_to_bf16(from[j], words[j] >> shift & 0xffffU);
  }
}

float largest(const Room& values, int64_t count) {
  uint32_t most = 0;  // magnitudes compare as their bits
  for (int64_t i = 0; i < count; ++i)
    most = std::max(most, std::bit_cast<uint32_t>(values[static_cast<size_t>(i)]) & 0x7fffffffU);
  return std::bit_cast<float>(most);
}

struct FirstMoment {
  static constexpr int kShift = 0;
  static float value(uint8_t code) { return ops::first_moment_value(code); }
  static uint8_t code(float scaled, uint32_t random) { return ops::first_moment_code(scaled, random); }
};
struct SecondMoment {
  static constexpr int kShift = 16;
  static float value(uint8_t code) { return ops::second_moment_value(code); }
  static uint8_t code(float scaled, uint32_t random) { return ops::second_moment_code(scaled, random); }
};

// One unit of an array as floats: where they lie, or in `room`.
float* unpack(const Tensor& t, const Unit& unit, Room& room) {
  if (t.dtype() == DType::kF32) return t.data<float>() + unit.begin;
  for_lanes(unit.count, [&](Lanes l) { l.store(room.data(), l.load(t.data<bf16>() + unit.begin)); });
  return room.data();
}
template <class Moment>
float* unpack(const Tensor& t, const Tensor& scales, const Unit& unit, Room& room) {
  if (t.dtype() != DType::kU8) return unpack(t, unit, room);
  const float scale = ops::e8m0_to_float(scales.data<uint8_t>()[unit.number]);
  const uint8_t* codes = t.data<uint8_t>() + unit.begin;
  for (int64_t i = 0; i < unit.count; ++i) room[static_cast<size_t>(i)] = scale * Moment::value(codes[i]);
  return room.data();
}
template <class Moment>
void pack(const Tensor& t, const Tensor& scales, const Unit& unit, const Room& room, const Words& words) {
  if (t.dtype() == DType::kBF16) return pack(t.data<bf16>() + unit.begin, room, unit.count, words, Moment::kShift);
  const uint8_t scale = ops::state_scale(largest(room, unit.count));
  const float inverse = ops::e8m0_inverse(scale);
  scales.data<uint8_t>()[unit.number] = scale;
  uint8_t* codes = t.data<uint8_t>() + unit.begin;
  for (int64_t i = 0; i < unit.count; ++i) {
    const auto j = static_cast<size_t>(i);
    codes[i] = Moment::code(room[j] * inverse, words[j] >> Moment::kShift & 0xffffU);
  }
}

struct Update {
  float beta1, beta2, eps, clip, lr, correction1, correction2;
  int64_t step;

  void operator()(const ops::AdamWTensor& t, const Unit& unit) const;
  void elements(const float* grad, float* p, float* m, float* v, bf16* working, int64_t count, float shrink) const;
};

void Update::elements(const float* grad, float* p, float* m, float* v, bf16* working, int64_t count, float shrink) const {
  for_lanes(count, [&](Lanes l) {
    const F16 g = l.load(grad) * clip;
    const F16 new_m = beta1 * l.load(m) + (1.0F - beta1) * g;
    const F16 new_v = beta2 * l.load(v) + (1.0F - beta2) * (g * g);
    F16 new_p = l.load(p);
    new_p -= shrink * new_p;
    new_p -= lr * (new_m / correction1) / (sqrt(new_v / correction2) + eps);
    l.store(m, new_m);
    l.store(v, new_v);
    l.store(p, new_p);
    if (working != nullptr) l.store(working, new_p);
  });
}

void Update::operator()(const ops::AdamWTensor& t, const Unit& unit) const {
  Room p_room, m_room, v_room;
  float* p = unpack(t.master, unit, p_room);
  float* m = unpack<FirstMoment>(t.m, t.m_scale, unit, m_room);
  float* v = unpack<SecondMoment>(t.v, t.v_scale, unit, v_room);
  bf16* working = t.working.defined() ? t.working.data<bf16>() + unit.begin : nullptr;
  elements(t.grad.data<float>() + unit.begin, p, m, v, working, unit.count, lr * t.weight_decay);
  if (t.m.dtype() != DType::kF32) {
    const Words words = words_of(t, unit, step, 0);
    pack<FirstMoment>(t.m, t.m_scale, unit, m_room, words);
    pack<SecondMoment>(t.v, t.v_scale, unit, v_room, words);
  }
  if (t.master.dtype() == DType::kBF16)
    pack(t.master.data<bf16>() + unit.begin, p_room, unit.count, words_of(t, unit, step, 1), 0);
}

}  // namespace

void adamw(Context& ctx, const ops::AdamW& args) {
  const StepState& state = *args.state;
  if (state.finite == 0) return;
  const Update update{
      args.beta1, args.beta2, args.eps, state.clip_factor, state.learning_rate, state.bias_correction1, state.bias_correction2,
      state.step};
  const auto pieces = cut_tensors(args.tensors, kTaskElements / kStateBlock,
                                  [](const ops::AdamWTensor& t) { return ops::state_rows(t).units(); });
  ctx.parallel_for(std::ssize(pieces), [&](int64_t i) {
    const TensorPiece& piece = pieces[static_cast<size_t>(i)];
    const ops::AdamWTensor& tensor = args.tensors[piece.tensor];
    const ops::StateRows rows = ops::state_rows(tensor);
    for (int64_t unit = piece.begin; unit < piece.end; ++unit) update(tensor, unit_of(rows, unit));
  });
  for (const ops::AdamWTensor& t : args.tensors)
    if (t.mx.rows.defined()) cpu::mxfp8_quantize_weights(ctx, {.w = ops::quantized_master(t), .out = t.mx});
}

}  // namespace cistron::cpu
