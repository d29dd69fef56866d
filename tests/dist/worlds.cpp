#include "cistron/dist/single.h"
#include "cistron/dist/threads.h"
#include "tests/dist/support.h"

namespace cistron::test {

dist::Communicator*& mpi_world() {
  static dist::Communicator* world = nullptr;
  return world;
}

std::vector<World> worlds() {
  if (mpi_world()) return {{"mpi", [](const auto& body) { body(*mpi_world()); }}};
  std::vector<World> result{{"single", [](const auto& body) { body(*dist::single()); }}};
  for (const int ranks : {1, 2, 3, 4, 7}) {
    result.push_back({"threads" + std::to_string(ranks),
                      [ranks](const auto& body) { dist::run_ranks(ranks, body, {std::chrono::seconds(60)}); }});
  }
  return result;
}

}  // namespace cistron::test
