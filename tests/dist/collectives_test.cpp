// Each collective against its definition, on every backend, bit for bit.
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/dist/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::Reduction;

constexpr int kRounds = 12;

class Collectives : public OnEveryWorld {};
INSTANTIATE_TEST_SUITE_P(Dist, Collectives, testing::ValuesIn(worlds()), world_name);

std::vector<int64_t> random_rows(uint64_t seed, int ranks) {
  std::vector<int64_t> rows(static_cast<size_t>(ranks));
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = random_size(seed, r);
  return rows;
}

int64_t total(const std::vector<int64_t>& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// ((x0 + x1) + x2) + ... in T, or the maximum.
template <class T>
std::vector<T> reduced(uint64_t seed, const std::vector<int>& order, int64_t count, Reduction reduction = Reduction::kSum) {
  std::vector<T> result = random_values<T>(seed, order[0], count);
  for (size_t r = 1; r < order.size(); ++r) {
    const std::vector<T> next = random_values<T>(seed, order[r], count);
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = reduction == Reduction::kSum ? result[i] + next[i] : std::max(result[i], next[i]);
    }
  }
  return result;
}

std::vector<int> rank_order(int ranks) {
  std::vector<int> order(static_cast<size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Ranks come in an order that differs from round to round.
void stagger(uint64_t seed, int rank) {
  std::this_thread::sleep_for(std::chrono::microseconds(Rng(seed, 99).below(static_cast<uint64_t>(rank), 1500)));
}

TEST_P(Collectives, AllGather) {
  run([](Communicator& world) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      const std::vector<int64_t> rows = random_rows(round, world.size());
      std::vector<float> want;
      for (int r = 0; r < world.size(); ++r) {
        const auto part = random_values<float>(round, r, rows[static_cast<size_t>(r)] * 3);
        want.insert(want.end(), part.begin(), part.end());
      }
      auto part = random_values<float>(round, world.rank(), rows[static_cast<size_t>(world.rank())] * 3);
      auto whole = poisoned_values<float>(total(rows) * 3);
      stagger(round, world.rank());
      world
          .all_gather(Tensor::view(part.data(), {rows[static_cast<size_t>(world.rank())], 3}, DType::kF32),
                      Tensor::view(whole.data(), {total(rows), 3}, DType::kF32), rows)
          .wait();
      EXPECT_EQ(whole, want) << "round " << round;
    }
  });
}

TEST_P(Collectives, AllGatherInPlace) {
  run([](Communicator& world) {
    constexpr int64_t kEach = 1000;
    auto whole = poisoned_values<int64_t>(kEach * world.size());
    const auto mine = random_values<int64_t>(5, world.rank(), kEach);
    const Tensor all = view_of(whole), part = all.rows(kEach * world.rank(), kEach);
    std::copy(mine.begin(), mine.end(), part.data<int64_t>());
    world.all_gather(part, all).wait();
    for (int r = 0; r < world.size(); ++r) {
      const auto got = all.rows(kEach * r, kEach).span<int64_t>();
      EXPECT_EQ(std::vector<int64_t>(got.begin(), got.end()), random_values<int64_t>(5, r, kEach)) << "from " << r;
    }
  });
}

TEST_P(Collectives, ReduceScatter) {
  run([](Communicator& world) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      const std::vector<int64_t> rows = random_rows(round, world.size());
      auto whole = random_values<float>(round, world.rank(), total(rows));
      auto part = poisoned_values<float>(rows[static_cast<size_t>(world.rank())]);
      stagger(round, world.rank());
      world.reduce_scatter(view_of(whole), view_of(part), rows).wait();
      const auto sum = reduced<float>(round, rank_order(world.size()), total(rows));
      const auto begin = sum.begin() + std::accumulate(rows.begin(), rows.begin() + world.rank(), int64_t{0});
      EXPECT_EQ(part, std::vector<float>(begin, begin + static_cast<int64_t>(part.size()))) << "round " << round;
      EXPECT_EQ(whole, random_values<float>(round, world.rank(), total(rows))) << "the input changed";
    }
  });
}

TEST_P(Collectives, ReduceScatterInPlace) {
  run([](Communicator& world) {
    constexpr int64_t kEach = 2500;
    auto whole = random_values<double>(6, world.rank(), kEach * world.size());
    const Tensor all = view_of(whole);
    world.reduce_scatter(all, all.rows(kEach * world.rank(), kEach)).wait();
    const auto sum = reduced<double>(6, rank_order(world.size()), kEach * world.size());
    for (int64_t i = kEach * world.rank(); i < kEach * (world.rank() + 1); ++i) {
      ASSERT_EQ(whole[static_cast<size_t>(i)], sum[static_cast<size_t>(i)]) << i;
    }
  });
}

template <class T>
void check_all_reduce(Communicator& world, Reduction reduction) {
  for (uint64_t round = 0; round < kRounds; ++round) {
    const int64_t count = random_size(round + 100, 0);
    const auto want = reduced<T>(round, rank_order(world.size()), count, reduction);
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto values = random_values<T>(round, world.rank(), count);
      stagger(2 * round + static_cast<uint64_t>(repeat), world.rank());
      world.all_reduce(view_of(values), reduction).wait();
      EXPECT_EQ(values, want) << "round " << round;
    }
  }
}

TEST_P(Collectives, AllReduce) {
  run([](Communicator& world) {
    check_all_reduce<float>(world, Reduction::kSum);
    check_all_reduce<double>(world, Reduction::kSum);
    check_all_reduce<int32_t>(world, Reduction::kSum);
    check_all_reduce<int64_t>(world, Reduction::kMax);
    check_all_reduce<float>(world, Reduction::kMax);
  });
}

// The comparison above sees the order of summation: it can tell rank order from another one.
TEST(CollectivesControl, AnotherOrderOfSummationShows) {
  EXPECT_NE(reduced<float>(3, {0, 1, 2}, 1000), reduced<float>(3, {2, 1, 0}, 1000));
  EXPECT_NE(reduced<double>(3, {0, 1, 2}, 1000), reduced<double>(3, {1, 2, 0}, 1000));
  EXPECT_NE(random_values<float>(3, 0, 1000), random_values<float>(3, 1, 1000));
}

TEST_P(Collectives, MaximumKeepsNaN) {
  run([](Communicator& world) {
    for (int where = 0; where < world.size(); ++where) {
      std::vector<float> values{world.rank() == where ? std::nanf("") : static_cast<float>(world.rank())};
      world.all_reduce(view_of(values), Reduction::kMax).wait();
      EXPECT_TRUE(std::isnan(values[0]));
    }
  });
}

// What rank `from` sends to rank `to`.
std::vector<int32_t> letter(uint64_t round, int from, int to) {
  const auto seed = round * 1000 + static_cast<uint64_t>(to);
  return random_values<int32_t>(seed, from, random_size(seed, static_cast<uint64_t>(from)) / 8);
}

TEST_P(Collectives, AllToAll) {
  run([](Communicator& world) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<int32_t> send, want;
      std::vector<int64_t> send_rows, receive_rows;
      for (int peer = 0; peer < world.size(); ++peer) {
        const auto out = letter(round, world.rank(), peer), in = letter(round, peer, world.rank());
        send.insert(send.end(), out.begin(), out.end());
        want.insert(want.end(), in.begin(), in.end());
        send_rows.push_back(static_cast<int64_t>(out.size()));
        receive_rows.push_back(static_cast<int64_t>(in.size()));
      }
      auto receive = poisoned_values<int32_t>(static_cast<int64_t>(want.size()));
      stagger(round, world.rank());
      world.all_to_all(view_of(send), send_rows, view_of(receive), receive_rows).wait();
      EXPECT_EQ(receive, want) << "round " << round;
    }
  });
}

TEST_P(Collectives, BroadcastAndBarrier) {
  run([](Communicator& world) {
    for (int root = 0; root < world.size(); ++root) {
      const int64_t count = random_size(8, static_cast<uint64_t>(root));
      auto values = world.rank() == root ? random_values<uint8_t>(8, root, count) : poisoned_values<uint8_t>(count);
      world.broadcast(view_of(values), root).wait();
      EXPECT_EQ(values, random_values<uint8_t>(8, root, count));
      world.barrier().wait();
    }
  });
}

// Several under way at once, waited for in an order of each rank's own.
TEST_P(Collectives, WaitsInAnyOrder) {
  run([](Communicator& world) {
    const auto other = world.split(0, "other");
    std::vector<std::vector<float>> values(6);
    std::vector<dist::Pending> pending(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = random_values<float>(i, world.rank(), 40000);
      pending[i] = (i % 2 ? *other : world).all_reduce(view_of(values[i]));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      pending[(i * 5 + static_cast<size_t>(world.rank())) % values.size()].wait();
    }
    for (uint64_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], reduced<float>(i, rank_order(world.size()), 40000)) << i;
    }
  });
}

TEST_P(Collectives, SplitByColour) {
  run([](Communicator& world) {
    const int colour = world.rank() % 3;
    const auto part = world.split(colour, "part");
    std::vector<int> members;
    for (int r = colour; r < world.size(); r += 3) members.push_back(r);
    EXPECT_EQ(part->membership().members, members);
    EXPECT_EQ(part->membership().world_rank(), world.rank());
    for (uint64_t round = 0; round < 3; ++round) {
      auto values = random_values<float>(round, world.rank(), 999);
      part->all_reduce(view_of(values)).wait();
      EXPECT_EQ(values, reduced<float>(round, members, 999));
    }
    const auto whole = part->split(0, "again")->split(part->rank(), "alone");
    EXPECT_EQ(whole->size(), 1);
  });
}

// A second thread of each rank uses a communicator of its own beside the first.
TEST_P(Collectives, ASecondThreadWithItsOwnCommunicator) {
  run([](Communicator& world) {
    const auto work = [](Communicator& mine, uint64_t seed) {
      for (uint64_t round = 0; round < 20; ++round) {
        auto values = random_values<float>(seed + round, mine.rank(), 500);
        mine.all_reduce(view_of(values)).wait();
        EXPECT_EQ(values, reduced<float>(seed + round, rank_order(mine.size()), 500));
      }
    };
    const auto background = world.split(0, "background");
    std::thread thread([&] { work(*background, 1000); });
    work(world, 2000);
    thread.join();
  });
}

}  // namespace
}  // namespace cistron::test
