#include "cistron/cpu/fast/amx.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

#include "cistron/core/error.h"

namespace cistron::cpu::amx {

namespace {

// As LDTILECFG reads it.
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr Shapes shapes() {
  Shapes s;
  for (int tile = 0; tile < 8; ++tile) {
    s.row_bytes[tile] = tile == kHalfA ? kLine / 2 : kLine;
    s.rows[tile] = tile == kHalfB ? 8 : 16;
  }
  return s;
}

// Linux gives a process the registers' state when it asks for it.
bool ask_for_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

Scope::Scope() {
  static const bool allowed = ask_for_tiles();
  if (!allowed)
    throw Error(ErrorKind::kFailed, "this program was built for AMX, which the system does not let it use", "arch_prctl",
                "take Linux 5.16 or later, or build with -DCISTRON_CPU_ARCH=icelake-server");
  static constexpr Shapes kShapes = shapes();
  _tile_loadconfig(&kShapes);
}

Scope::~Scope() { _tile_release(); }

}  // namespace cistron::cpu::amx
#endif
