#pragma once
// Products by a warpgroup: d[64, N] (+)= a[64, k] b[N, k]^T, operands in shared memory in rows of 128 bytes, swizzled, in panels
// of 64 rows (8 KiB); d in registers. k is 16 bf16 or 32 e4m3 values. d[4i + 2h + j] is row 16 (warp % 4) + lane / 4 + 8h, column
// 8i + 2 (lane % 4) + j.
#include "cistron/cuda/device/ptx.cuh"

namespace cistron::cuda::device {

constexpr uint32_t kPanelBytes = 64 * 128;

/// How an operand's panels lie: rows along the contraction (64 rows of the operand), or across it (64 steps of the contraction).
enum class Major { kAlong, kAcross };

/// Descriptor of the operand that starts at `address`: 1024 bytes between groups of eight panel rows, 8 KiB between panels.
template <Major kMajor>
__device__ __forceinline__ uint64_t operand(uint32_t address) {
  constexpr uint64_t kLeading = kMajor == Major::kAcross ? kPanelBytes >> 4 : 1;
  constexpr uint64_t kConstant = kLeading << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
  return kConstant | (address & 0x3ffffU) >> 4;
}
/// What one k of the instruction adds to a descriptor: 32 bytes along a row, or 16 panel rows.
template <Major kMajor>
constexpr uint64_t kOperandStep = (kMajor == Major::kAcross ? 16 * 128 : 32) >> 4;

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of d across the asynchronous products.
template <int N>
__device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

struct Bf16 {};
struct E4m3 {};

/// One instruction; `add` false overwrites d.
template <class Element, int N, Major kA, Major kB>
struct Wgmma;

// Operand lists, ten or eight numbers at a time: the instruction wants all N / 2 registers by name.
#define CISTRON_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define CISTRON_NAMES_30 CISTRON_TEN() CISTRON_TEN(1) CISTRON_TEN(2)
#define CISTRON_NAMES_60 CISTRON_NAMES_30 CISTRON_TEN(3) CISTRON_TEN(4) CISTRON_TEN(5)
#define CISTRON_NAMES_90 CISTRON_NAMES_60 CISTRON_TEN(6) CISTRON_TEN(7) CISTRON_TEN(8)
#define CISTRON_NAMES_32 CISTRON_NAMES_30 "%30,%31"
#define CISTRON_NAMES_48 CISTRON_NAMES_30 CISTRON_TEN(3) "%40,%41,%42,%43,%44,%45,%46,%47"
#define CISTRON_NAMES_64 CISTRON_NAMES_60 "%60,%61,%62,%63"
#define CISTRON_NAMES_96 CISTRON_NAMES_90 "%90,%91,%92,%93,%94,%95"
#define CISTRON_NAMES_128 \
  CISTRON_NAMES_90 CISTRON_TEN(9) CISTRON_TEN(10) CISTRON_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define CISTRON_D8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define CISTRON_D16(i) CISTRON_D8(i), CISTRON_D8(i + 8)
#define CISTRON_D32(i) CISTRON_D16(i), CISTRON_D16(i + 16)
#define CISTRON_REGISTERS_32 CISTRON_D32(0)
#define CISTRON_REGISTERS_48 CISTRON_D32(0), CISTRON_D16(32)
#define CISTRON_REGISTERS_64 CISTRON_D32(0), CISTRON_D32(32)
#define CISTRON_REGISTERS_96 CISTRON_REGISTERS_64, CISTRON_D32(64)
#define CISTRON_REGISTERS_128 CISTRON_REGISTERS_96, CISTRON_D32(96)

// P1 to P5: the numbers after the registers'.
#define CISTRON_WGMMA(N, D, P1, P2, P3, P4, P5)                                                                         \
  template <Major kA, Major kB>                                                                                         \
  struct Wgmma<Bf16, N, kA, kB> {                                                                                       \
    __device__ static __forceinline__ void run(float (&d)[D], uint64_t a, uint64_t b, bool add) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P3 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                \
                   "k16.f32.bf16.bf16 {" CISTRON_NAMES_##D "}, %" #P1 ", %" #P2 ", p, 1, 1, %" #P4 ", %" #P5 ";\n}"     \
                   : CISTRON_REGISTERS_##D                                                                              \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kA == Major::kAcross), "n"(kB == Major::kAcross)); \
    }                                                                                                                   \
  };                                                                                                                    \
  template <>                                                                                                           \
  struct Wgmma<E4m3, N, Major::kAlong, Major::kAlong> {                                                                 \
    __device__ static __forceinline__ void run(float (&d)[D], uint64_t a, uint64_t b, bool add) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P3 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N                \
                   "k32.f32.e4m3.e4m3 {" CISTRON_NAMES_##D "}, %" #P1 ", %" #P2 ", p, 1, 1;\n}"                         \
                   : CISTRON_REGISTERS_##D                                                                              \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                                       \
    }                                                                                                                   \
  };
CISTRON_WGMMA(64, 32, 32, 33, 34, 35, 36)
CISTRON_WGMMA(96, 48, 48, 49, 50, 51, 52)
CISTRON_WGMMA(128, 64, 64, 65, 66, 67, 68)
CISTRON_WGMMA(192, 96, 96, 97, 98, 99, 100)
CISTRON_WGMMA(256, 128, 128, 129, 130, 131, 132)

}  // namespace cistron::cuda::device
