#include "cistron/core/host_memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>

namespace cistron {
namespace {

TEST(HostMemory, IsWithinWhatTheMachineHas) {
  struct sysinfo info{};
  ASSERT_EQ(sysinfo(&info), 0);
  EXPECT_GT(available_host_memory(), 0);
  EXPECT_LE(available_host_memory(), static_cast<int64_t>(info.totalram) * info.mem_unit);
}

}  // namespace
}  // namespace cistron
