#include "tests/dist/mpi_scenarios.h"

#include <csignal>
#include <functional>
#include <map>
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
