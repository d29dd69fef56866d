#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void copy(Context& ctx, const ops::Copy&) { ops::throw_no_backend("copy", ctx.device); }
MemorySource& device_memory(const Device& device) { ops::throw_no_backend("memory", device); }
MemorySource& shared_memory(const Device& device) { ops::throw_no_backend("memory", device); }
int64_t available_memory(const Device& device) { ops::throw_no_backend("memory", device); }

}  // namespace cistron::cuda
