#include "tests/dist/mpi_scenarios.h"

#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "cistron/core/error.h"
#include "tests/dist/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using Scenario = std::function<void(Communicator&)>;

void sum(Communicator& world, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), 1.0F);
  world.all_reduce(view_of(values)).wait();
  CISTRON_CHECK(values == std::vector<float>(values.size(), static_cast<float>(world.size())), "[test] wrong sum");
}

// Rank 1 does what is odd where the others sum.
Scenario odd(const Scenario& act) {
  return [act](Communicator& world) {
    world.barrier().wait();
    if (world.rank() == 1) act(world);
    if (world.rank() != 1) sum(world, 1000);
  };
}

void sleep_long(Communicator& /*world*/) { std::this_thread::sleep_for(std::chrono::seconds(100)); }

// More than one message a peer, with a tail.
void large(Communicator& world) {
  constexpr int64_t kEach = (int64_t{129} << 20) / 8 + 5;
  std::vector<int64_t> part(static_cast<size_t>(kEach)), whole(part.size() * static_cast<size_t>(world.size()));
  for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<int64_t>(i) * (world.rank() + 3);
  world.all_gather(view_of(part), view_of(whole)).wait();
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto want = static_cast<int64_t>(i % part.size() * (i / part.size() + 3));
    CISTRON_CHECK(whole[i] == want, "[test] element {} is {}, not {}", i, whole[i], want);
  }
}

// Numbers of mixed magnitude, so that another order of summation shows.
float number(int rank, size_t i) {
  const Rng rng(31, static_cast<uint64_t>(rank));
  return static_cast<float>(static_cast<int64_t>(rng.bits(i) >> 40) - (1 << 23)) * (i % 3 == 0 ? 1e-3F : 1.0F);
}

float sum_at(int ranks, size_t i) {
  float sum = number(0, i);
  for (int rank = 1; rank < ranks; ++rank) sum += number(rank, i);
  return sum;
}

int64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (int64_t kilobytes = 0; word == "VmHWM:" && status >> kilobytes) return kilobytes << 10;
  return 0;
}

// Reductions of far more than is ever held of the others' parts: in rank order, and within that memory.
void pieces(Communicator& world) {
  constexpr int64_t kRows = 5'000'003, kMost = int64_t{32} << 20;
  std::vector<int64_t> rows(static_cast<size_t>(world.size()), 7);
  rows[0] = kRows;
  rows[1] = 0;
  std::vector<float> whole(static_cast<size_t>(kRows + 7 * (world.size() - 2)));
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = number(world.rank(), i);
  const int64_t mine = rows[static_cast<size_t>(world.rank())];
  const int64_t first = std::accumulate(rows.begin(), rows.begin() + world.rank(), int64_t{0});
  const auto check = [&](int64_t begin, int64_t count) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(begin + count); ++i)
      CISTRON_CHECK(whole[i] == sum_at(world.size(), i), "[test] element {} is {}, not {}", i, whole[i], sum_at(world.size(), i));
  };
  const int64_t before = peak_memory();
  const Tensor all = view_of(whole);
  world.reduce_scatter(all, all.rows(first, mine), rows).wait();
  CISTRON_CHECK(peak_memory() - before < kMost, "[test] {} bytes were taken", peak_memory() - before);
  check(first, mine);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = number(world.rank(), i);
  world.all_reduce(all).wait();
  CISTRON_CHECK(peak_memory() - before < kMost, "[test] {} bytes were taken", peak_memory() - before);
  check(0, std::ssize(whole));
}

void late_in_a_part(Communicator& world) {
  const auto part = world.split(world.rank() / 2, "half");
  if (world.rank() == 3) sleep_long(world);
  if (world.rank() == 2) part->barrier().wait();
  if (world.rank() < 2) std::this_thread::sleep_for(std::chrono::seconds(50));
}

}  // namespace

void run_scenario(const std::string& name, Communicator& world) {
  const std::map<std::string, Scenario> scenarios{
      {"well", odd([](Communicator& all) { sum(all, 1000); })},
      {"large", large},
      {"pieces", pieces},
      {"throws", odd([](Communicator&) { throw Error(ErrorKind::kBadData, "bad record", "here", "mend it"); })},
      {"late", odd(sleep_long)},
      {"late_in_a_part", late_in_a_part},
      {"stopped", odd([](Communicator&) { std::raise(SIGSTOP); })},
      {"killed", odd([](Communicator&) { std::raise(SIGKILL); })},
      {"ends", odd([](Communicator&) {})},
      {"other", odd([](Communicator& all) { all.barrier().wait(); })},
      {"longer", odd([](Communicator& all) { sum(all, 1001); })},
      {"drops", odd([](Communicator& all) {
         {
           const dist::Pending dropped = all.barrier();
         }
         all.barrier().wait();
       })},
  };
  scenarios.at(name)(world);
}

}  // namespace cistron::test
