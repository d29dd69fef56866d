#include "cistron/dist/together.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "cistron/core/error.h"
#include "cistron/dist/background.h"
#include "cistron/dist/threads.h"
#include "tests/dist/support.h"

namespace cistron::test {
namespace {

using dist::Background;
using dist::Communicator;
using testing::HasSubstr;

TEST(Together, WhereOneFailsAllThrowAndTheWorldGoesOn) {
  dist::run_ranks(3, [](Communicator& world) {
    EXPECT_NO_THROW(dist::together(world, [] {}));
    const auto act = [&] {
      if (world.rank() == 1) throw Error(ErrorKind::kOutOfSpace, "no space left", "here", "make room");
    };
    try {
      dist::together(world, act);
      FAIL() << "rank " << world.rank();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfSpace);
      EXPECT_THAT(error.what(), HasSubstr("no space left: here"));
      EXPECT_EQ(std::string_view(error.what()).starts_with("rank 1 has failed"), world.rank() != 1);
    }
    world.barrier().wait();
  });
}

// A launcher ends every rank as soon as one has left.
TEST(Together, WhereOneFailsNoneThrowsBeforeAllHaveUndone) {
  std::atomic<int> undone = 0;
  dist::run_ranks(3, [&](Communicator& world) {
    const auto act = [&] {
      if (world.rank() == 1) throw Error(ErrorKind::kFailed, "no", "here", "there");
    };
    const auto undo = [&] {
      if (world.rank() != 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ++undone;
    };
    EXPECT_NO_THROW(dist::together(world, [] {}, undo));
    EXPECT_EQ(undone, 0);
    world.barrier().wait();
    EXPECT_THROW(dist::together(world, act, undo), Error);
    EXPECT_EQ(undone, 3);
  });
}

TEST(Together, ARankThatLeavesWhileOthersUndoHidesNotWhy) {
  std::atomic<int> told = 0;
  const auto run = [&](Communicator& world) {
    const auto act = [&] {
      if (world.rank() == 1) throw Error(ErrorKind::kOutOfSpace, "no space left", "here", "make room");
    };
    const auto undo = [&] {
      if (world.rank() == 2) world.abandon("it was ended");
    };
    try {
      dist::together(world, act, undo);
    } catch (const Error& error) {
      told += error.kind() == ErrorKind::kOutOfSpace ? 1 : 0;
      throw;
    }
  };
  EXPECT_THAT([&] { dist::run_ranks(3, run, {std::chrono::seconds(60)}); },
              testing::ThrowsMessage<Error>(HasSubstr("no space left")));
  EXPECT_EQ(told, 3);
}

TEST(Together, WhatIsNoExceptionFailsOnAll) {
  dist::run_ranks(3, [](Communicator& world) {
    const auto act = [&] {
      if (world.rank() == 2) throw 7;
    };
    if (world.rank() == 2) {
      EXPECT_THROW(dist::together(world, act), int);
    } else {
      EXPECT_THAT([&] { dist::together(world, act); }, testing::ThrowsMessage<Error>(HasSubstr("rank 2 has failed")));
    }
  });
}

TEST(Background, RunsJobsInOrderAndWaitsForOne) {
  Background background([] {});
  std::vector<int> order;
  int64_t last = 0;
  for (int i = 0; i < 100; ++i) last = background.submit([&order, i] { order.push_back(i); });
  background.wait(last);
  EXPECT_TRUE(background.is_done(last));
  EXPECT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(Background, WhatAJobThrowsComesOutWhereItIsWaitedFor) {
  Background background([] {});
  bool ran = false;
  const int64_t bad = background.submit([] { throw Error(ErrorKind::kBadData, "a bad job"); });
  const int64_t after = background.submit([&] { ran = true; });
  EXPECT_THAT([&] { background.wait(bad); }, testing::ThrowsMessage<Error>("a bad job"));
  EXPECT_THROW(background.wait(after), Error);
  EXPECT_FALSE(ran);
}

TEST(Background, ARankThatUnwindsTakesItsJobsAlongAndTheOthersHearOfIt) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(
      [] {
        dist::run_ranks(2,
                        [](Communicator& world) {
                          const auto own = world.split(0, "own");
                          Background background([&] { own->abandon("it has left"); });
                          const int64_t job = background.submit([&] { own->barrier().wait(); });
                          if (world.rank() == 0) background.wait(job);
                          background.wait(background.submit([&] {
                            if (world.rank() == 1) own->barrier().wait();  // rank 0 never comes
                          }));
                          if (world.rank() == 0) throw Error(ErrorKind::kBadData, "rank 0 breaks down");
                        },
                        {std::chrono::seconds(60)});
      },
      testing::ThrowsMessage<Error>(HasSubstr("rank 0 breaks down")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Abandon, OthersAndThisRanksThreadsGetAnError) {
  std::atomic<int> told{0};
  EXPECT_THROW(dist::run_ranks(2,
                               [&](Communicator& world) {
                                 if (world.rank() == 1) return world.abandon("gone fishing");
                                 try {
                                   world.barrier().wait();
                                 } catch (const Error& error) {
                                   if (std::string_view(error.what()).find("gone fishing") != std::string_view::npos) ++told;
                                   throw;
                                 }
                               },
                               {std::chrono::seconds(60)}),
               Error);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace cistron::test
