#include "cistron/core/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <vector>

namespace cistron {
namespace {

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> done(static_cast<size_t>(round), 0);
      pool.parallel_for(round, [&](int64_t i) { ++done[static_cast<size_t>(i)]; });
      for (const int count : done) ASSERT_EQ(count, 1);
    }
  }
}

// Workers asleep, about to sleep, spinning and late.
TEST(ThreadPool, RunsEachTaskOnceAfterAnyPause) {
  ThreadPool pool(4);
  for (int round = 0; round < 600; ++round) {
    std::vector<int> done(2 + static_cast<size_t>(round % 7), 0);
    pool.parallel_for(std::ssize(done), [&](int64_t i) {
      if (i % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(round % 90));  // the caller spins, or sleeps
      ++done[static_cast<size_t>(i)];
    });
    for (const int count : done) ASSERT_EQ(count, 1);
    std::this_thread::sleep_for(std::chrono::microseconds(round % 120));
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolLivesOn) {
  ThreadPool pool(3);
  EXPECT_THROW(pool.parallel_for(100,
                                 [](int64_t i) {
                                   if (i == 37) throw std::runtime_error("37");
                                 }),
               std::runtime_error);
  std::atomic<int> sum{0};
  pool.parallel_for(10, [&](int64_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 45);
}

}  // namespace
}  // namespace cistron
