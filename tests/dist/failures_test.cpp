// Ranks as threads that fail, hang, leave or take another way: the others are told who and where, in time.
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "cistron/core/error.h"
#include "cistron/dist/patience.h"
#include "cistron/dist/single.h"
#include "cistron/dist/threads.h"
#include "tests/dist/support.h"
#include "tests/ops/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::run_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kRanks = 4;

// What each rank's own call threw, by rank.
std::vector<std::string> errors_by_rank(const std::function<void(Communicator&)>& body, std::chrono::milliseconds timeout) {
  std::vector<std::string> errors(kRanks);
  const auto keep = [&](Communicator& world) {
    std::string& mine = errors[static_cast<size_t>(world.rank())];
    try {
      body(world);
    } catch (const std::exception& error) {
      mine = error.what();
      throw;
    }
  };
  EXPECT_ANY_THROW(run_ranks(kRanks, keep, {timeout}));
  return errors;
}

TEST(Patience, CountsTheTimeAwakeAlone) {
  const auto start = dist::Patience::Clock::now();
  dist::Patience patience(1000ms);
  EXPECT_FALSE(patience.is_over(start + 1h)) << "stopped for an hour";
  EXPECT_LE(patience.slice(), 100ms);
  int looks = 1;
  for (auto now = start + 1h; !patience.is_over(now += 50ms); ++looks) ASSERT_LT(looks, 100);
  EXPECT_GE(looks, 900 / 50 - 1);
  EXPECT_LE(looks, 1000 / 50);
}

TEST(DistFailures, ARankThatThrowsWakesTheOthers) {
  const auto body = [](Communicator& world) {
    std::vector<float> values(100);
    world.barrier().wait();
    if (world.rank() == 2) throw std::runtime_error("no more of this");
    world.all_reduce(view_of(values)).wait();
  };
  std::vector<std::string> errors = errors_by_rank(body, 60s);
  EXPECT_EQ(errors[2], "no more of this");
  errors.erase(errors.begin() + 2);
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 2 has failed"), HasSubstr("no more of this"), HasSubstr("all_reduce 2 of world"))));
}

TEST(DistFailures, TheFirstErrorIsThrownAgain) {
  const auto body = [](Communicator& world) {
    if (world.rank() == 3) throw Error(ErrorKind::kBadData, "the first", "rank 3", "none");
    world.barrier().wait();
  };
  try {
    run_ranks(kRanks, body, {60s});
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("the first"));
  }
}

TEST(DistFailures, WhatIsNoExceptionIsAFailureToo) {
  const auto body = [](Communicator& world) {
    if (world.rank() == 1) throw 7;
    world.barrier().wait();
  };
  EXPECT_THROW(run_ranks(kRanks, body, {60s}), int);
}

TEST(DistFailures, ARankThatNeverArrivesIsNamed) {
  std::atomic<int> thrown = 0;
  const auto body = [&](Communicator& world) {
    world.barrier().wait();
    if (world.rank() == 1 || world.rank() == 3) {
      while (thrown < 2) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      world.barrier().wait();
    } catch (const Error&) {
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
      ++thrown;
      throw;
    }
  };
  const std::vector<std::string> errors = errors_by_rank(body, 100ms);
  EXPECT_THAT((std::vector{errors[0], errors[2]}),
              Each(AllOf(HasSubstr("ranks 1, 3 have not arrived within 0.1 s"), HasSubstr("barrier 2 of world"))));
}

TEST(DistFailures, WithTimeEnoughNobodyIsMissing) {
  run_ranks(kRanks,
            [](Communicator& world) {
              if (world.rank() == 1) std::this_thread::sleep_for(100ms);
              world.barrier().wait();
            },
            {60s});
}

TEST(DistFailures, ARankThatHasEndedIsNotWaitedFor) {
  const auto body = [](Communicator& world) {
    if (world.rank() != 1) world.barrier().wait();
  };
  const std::vector<std::string> errors = errors_by_rank(body, 60s);
  EXPECT_THAT((std::vector{errors[0], errors[2], errors[3]}),
              Each(AllOf(HasSubstr("rank 1 has ended"), HasSubstr("barrier 1 of world"))));
}

// In a part of the world, too, ranks have their numbers in the world.
TEST(DistFailures, PartsNameRanksOfTheWorld) {
  const auto body = [](Communicator& world) {
    const auto part = world.split(world.rank() / 2, "half");
    if (world.rank() == 3) throw std::runtime_error("gone");
    if (world.rank() == 2) part->barrier().wait();
    if (world.rank() < 2) world.barrier().wait();
  };
  const std::vector<std::string> errors = errors_by_rank(body, 60s);
  EXPECT_THAT((std::vector{errors[0], errors[1], errors[2]}), Each(HasSubstr("rank 3 has failed")));
  EXPECT_THAT(errors[2], HasSubstr("barrier 1 of half on rank 2"));
}

// Rank 1 does something else than the rest; all must hear of it, named.
std::vector<std::string> mismatched(const std::function<void(Communicator&)>& rest,
                                    const std::function<void(Communicator&)>& odd) {
  return errors_by_rank([&](Communicator& world) { world.rank() == 1 ? odd(world) : rest(world); }, 60s);
}

template <class T>
void sum(Communicator& world, int64_t count, dist::Reduction reduction = dist::Reduction::kSum) {
  std::vector<T> values(static_cast<size_t>(count));
  world.all_reduce(view_of(values), reduction).wait();
}

TEST(DistFailures, MismatchesAreNamed) {
  const auto barrier = [](Communicator& world) { world.barrier().wait(); };
  const auto floats = [](Communicator& world) { sum<float>(world, 100); };
  const auto more = [](Communicator& world) { sum<float>(world, 101); };
  const auto ints = [](Communicator& world) { sum<int32_t>(world, 100); };
  const auto maximum = [](Communicator& world) { sum<float>(world, 100, dist::Reduction::kMax); };
  EXPECT_THAT(mismatched(floats, barrier), Each(AllOf(HasSubstr("called barrier"), HasSubstr("called all_reduce of f32"))));
  EXPECT_THAT(mismatched(floats, ints), Each(AllOf(HasSubstr("all_reduce of f32"), HasSubstr("all_reduce of i32"))));
  EXPECT_THAT(mismatched(floats, maximum), Each(HasSubstr("(maximum)")));
  EXPECT_THAT(mismatched(floats, more), Each(AllOf(HasSubstr("bytes where rank"), HasSubstr("all_reduce 1 of world"))));
}

TEST(DistFailures, MismatchedAllToAllIsNamed) {
  // Rank 0 sends two rows to rank 3, which expects one.
  const auto body = [](Communicator& world) {
    std::vector<int64_t> send_rows(kRanks, 1), receive_rows(kRanks, 1);
    if (world.rank() == 0) send_rows[3] = 2;
    std::vector<int32_t> send(world.rank() == 0 ? 5 : 4), receive(4);
    world.all_to_all(view_of(send), send_rows, view_of(receive), receive_rows).wait();
  };
  EXPECT_THAT(errors_by_rank(body, 60s), Each(HasSubstr("rank 0 sends 8 bytes where rank 3 expects 4")));
}

TEST(DistFailures, ADroppedPendingIsAFailure) {
  const auto body = [](Communicator& world) {
    if (world.rank() == 2) {
      {
        const dist::Pending dropped = world.barrier();
      }
      return;
    }
    std::this_thread::sleep_for(20ms);
    world.barrier().wait();
  };
  const auto errors = errors_by_rank(body, 60s);
  EXPECT_THAT((std::vector{errors[0], errors[1], errors[3]}), Each(HasSubstr("barrier 1 of world on rank 2 was dropped")));
}

// A rank unwinds, and its buffers go, while others may be reading them: for the sanitizers.
TEST(DistFailures, BuffersMayGoWithARankThatThrows) {
  for (uint64_t round = 0; round < 40; ++round) {
    const auto body = [round](Communicator& world) {
      std::vector<float> part(50000, 1.0F), whole(part.size() * kRanks);
      dist::Pending pending = world.all_gather(view_of(part), view_of(whole));
      if (world.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::microseconds(Rng(23, 0).below(round, 300)));
        throw std::runtime_error("unwinds");
      }
      pending.wait();
    };
    EXPECT_THROW(run_ranks(kRanks, body, {60s}), std::runtime_error);
  }
}

TEST(DistFailures, WrongArguments) {
  const auto world = dist::single();
  std::vector<float> four(4), five(5);
  std::vector<uint8_t> bytes(4);
  const std::vector<int64_t> rows{4}, two{2, 2};
  EXPECT_THAT(error_of([&] { world->all_gather(view_of(four), view_of(five), rows).wait(); }), HasSubstr("add up to 4"));
  EXPECT_THAT(error_of([&] { world->all_gather(view_of(four), view_of(five)).wait(); }), HasSubstr("part"));
  EXPECT_THAT(error_of([&] { world->reduce_scatter(view_of(four), view_of(four), two).wait(); }), HasSubstr("2 row counts"));
  EXPECT_THAT(error_of([&] { world->all_reduce(view_of(bytes)).wait(); }), HasSubstr("u8 cannot be reduced"));
  EXPECT_THAT(error_of([&] { world->broadcast(view_of(four), 1).wait(); }), HasSubstr("root 1 of 1"));
  EXPECT_THAT(error_of([&] { world->all_reduce(Tensor{}).wait(); }), HasSubstr("undefined"));
}

// A thread that hangs cannot be stopped, so the program leaves.
TEST(DistFailuresDeathTest, ARankThatHangsForEverEndsTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [](Communicator& world) {
    if (world.rank() == 1) std::this_thread::sleep_for(1h);
    world.barrier().wait();
  };
  EXPECT_EXIT(run_ranks(2, body, {200ms}), testing::ExitedWithCode(1), "rank 1 cannot be stopped.*rank 1 has not arrived");
}

}  // namespace
}  // namespace cistron::test
