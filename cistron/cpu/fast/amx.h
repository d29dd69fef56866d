#pragma once
// Intel's tile registers: sixteen rows of sixteen words, and c += a b of words of two bf16, their sums in f32 ("Intel 64 and
// IA-32 Architectures Software Developer's Manual", volume 1, chapter 18; TDPBF16PS). Subnormal numbers are zeros, as in
// vdpbf16ps.
#include <cstdint>

#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

namespace cistron::cpu {

/// Whether this build multiplies with tile registers; it then runs on no processor that has none.
#ifdef __AMX_BF16__
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif

namespace amx {

constexpr int64_t kSums = 4;  // tiles of sums; two more for operands, and two for their last halves

/// Gives the calling thread's tile registers their shapes, and frees them at the end. Throws where the system does not let the
/// process have them.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

#ifdef __AMX_BF16__

// Numbers of tile registers are part of the instructions: 0 to 3 are sums, 4 and 5 tiles of a and b, 6 and 7 halves of them.
constexpr int kHalfA = 6, kHalfB = 7;
constexpr int64_t kWords = 16, kLine = 64;  // of a whole tile's rows: words, bytes

/// Where block i = 0, 1, ... of an operand begins.
struct Operand {
  const uint32_t* data;
  int64_t step;
};

struct Sums {
  float* data;
  int64_t ld, step;
};

template <bool half>
void load_a(const uint32_t* tile) {
  if constexpr (half)
    _tile_loadd(6, tile, kLine);
  else
    _tile_loadd(4, tile, kLine);
}

template <bool half>
void load_b(const uint32_t* tile) {
  if constexpr (half)
    _tile_loadd(7, tile, kLine);
  else
    _tile_loadd(5, tile, kLine);
}

// The operand that all sums share is there already.
template <bool half>
void load(const Operand& a, const Operand& b, int64_t i) {
  if (a.step > 0)
    load_a<half>(a.data + i * a.step);
  else
    load_b<half>(b.data + i * b.step);
}

template <bool half>
void multiply_tiles(const Operand& a, const Operand& b, int64_t count) {
  load_a<half>(a.data);
  load_b<half>(b.data);
  if constexpr (half) {
    _tile_dpbf16ps(0, 6, 7);
    if (count > 1) {
      load<half>(a, b, 1);
      _tile_dpbf16ps(1, 6, 7);
    }
    if (count > 2) {
      load<half>(a, b, 2);
      _tile_dpbf16ps(2, 6, 7);
    }
    if (count > 3) {
      load<half>(a, b, 3);
      _tile_dpbf16ps(3, 6, 7);
    }
  } else {
    _tile_dpbf16ps(0, 4, 5);
    if (count > 1) {
      load<half>(a, b, 1);
      _tile_dpbf16ps(1, 4, 5);
    }
    if (count > 2) {
      load<half>(a, b, 2);
      _tile_dpbf16ps(2, 4, 5);
    }
    if (count > 3) {
      load<half>(a, b, 3);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
}

template <bool add>
void begin_sums(const Sums& c, int64_t count) {
  if constexpr (add) {
    const int64_t row = c.ld * int64_t{sizeof(float)};
    _tile_loadd(0, c.data, row);
    if (count > 1) _tile_loadd(1, c.data + c.step, row);
    if (count > 2) _tile_loadd(2, c.data + 2 * c.step, row);
    if (count > 3) _tile_loadd(3, c.data + 3 * c.step, row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

inline void store_sums(const Sums& c, int64_t count) {
  const int64_t row = c.ld * int64_t{sizeof(float)};
  _tile_stored(0, c.data, row);
  if (count > 1) _tile_stored(1, c.data + c.step, row);
  if (count > 2) _tile_stored(2, c.data + 2 * c.step, row);
  if (count > 3) _tile_stored(3, c.data + 3 * c.step, row);
}

/// c_i = (or +=) a_i b_i for `count` <= kSums blocks of which one operand is the same; depth is a multiple of eight words.
template <bool add>
void multiply(Operand a, Operand b, const Sums& c, int64_t count, int64_t depth) {
  asm volatile("" ::: "memory");  // GCC doesn't know that the loads read memory
  begin_sums<add>(c, count);
  int64_t k = 0;
  for (; k + kWords <= depth; k += kWords) {
    multiply_tiles<false>(a, b, count);
    a.data += kWords * kWords;
    b.data += kWords * kWords;
  }
  if (k < depth) multiply_tiles<true>(a, b, count);
  store_sums(c, count);
}

#endif

}  // namespace amx
}  // namespace cistron::cpu
