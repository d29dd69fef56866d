#pragma once
// The worlds that every test of a collective runs on, and inputs that each rank can compute for all others.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "cistron/core/rng.h"
#include "cistron/dist/communicator.h"

namespace cistron::test {

struct World {
  std::string name;
  std::function<void(const std::function<void(dist::Communicator&)>&)> run;  ///< the function on every rank
};

inline void PrintTo(const World& world, std::ostream* out) { *out << world.name; }

/// `single` and `threads` with several numbers of ranks; under mpirun only the world that it made.
std::vector<World> worlds();

/// Set by main() under mpirun.
dist::Communicator*& mpi_world();

/// Every test of the suite on every world: `TEST_P(Suite, Name) { run([&](Communicator& world) { ... }); }`
class OnEveryWorld : public testing::TestWithParam<World> {
 protected:
  void run(const std::function<void(dist::Communicator&)>& body) { GetParam().run(body); }
};
inline std::string world_name(const testing::TestParamInfo<World>& info) { return info.param.name; }

/// Sizes for a round of a test, the same on all ranks: from 0 to some thousands, one in four of them 0.
inline int64_t random_size(uint64_t seed, uint64_t i) {
  const Rng rng(seed, 1);
  return rng.below(2 * i, 4) == 0 ? 0 : static_cast<int64_t>(rng.below(2 * i + 1, 3000));
}

/// Numbers of mixed magnitude, so that another order of summation shows; integers that fill half of their bits.
template <class T>
std::vector<T> random_values(uint64_t seed, int rank, int64_t count) {
  const Rng rng(seed, 2 + static_cast<uint64_t>(rank));
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      values[i] = static_cast<T>(rng.normal(2 * i) * (1 << rng.below(2 * i + 1, 12)));
    } else {
      values[i] = static_cast<T>(rng.bits(i)) >> (4 * sizeof(T));
    }
  }
  return values;
}

/// Filled with what no input holds.
template <class T>
std::vector<T> poisoned_values(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count), static_cast<T>(-77777777));
}

template <class T>
Tensor view_of(std::vector<T>& values) {
  return Tensor::view(std::span<T>(values));
}

}  // namespace cistron::test
