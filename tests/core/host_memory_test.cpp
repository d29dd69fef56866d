#include "cistron/core/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

namespace cistron {
namespace {

TEST(HostMemory, IsWithinWhatTheMachineHas) {
  struct sysinfo info{};
  ASSERT_EQ(sysinfo(&info), 0);
  EXPECT_GT(available_host_memory(), 0);
  EXPECT_LE(available_host_memory(), static_cast<int64_t>(info.totalram) * info.mem_unit);
}

TEST(HostMemory, IsWithinTheLimitsOfTheProcess) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory does not fit into these limits";
#endif
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit old{};
    ASSERT_EQ(getrlimit(resource, &old), 0);
    rlimit tight = old;
    tight.rlim_cur = rlim_t{1} << 29;
    ASSERT_EQ(setrlimit(resource, &tight), 0);
    const int64_t available = available_host_memory();
    ASSERT_EQ(setrlimit(resource, &old), 0);
    EXPECT_LT(available, int64_t{1} << 29);
  }
}

}  // namespace
}  // namespace cistron
