#include "cistron/core/context.h"

namespace cistron {

void Context::parallel_for(int64_t count, const std::function<void(int64_t)>& task) const {
  if (pool != nullptr) return pool->parallel_for(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace cistron
