// Started alone: every test. Under mpirun: the tests that run on every world, or a scenario: dist_tests --scenario NAME.
#include <cstring>

#include "cistron/dist/mpi.h"
#include "tests/dist/mpi_scenarios.h"
#include "tests/dist/support.h"

namespace {

int run_tests_on(cistron::dist::Communicator& world, int argc, char** argv) {
  cistron::test::mpi_world() = &world;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace

int main(int argc, char** argv) {
  if (!cistron::dist::launched_by_mpi()) {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  if (argc == 3 && std::strcmp(argv[1], "--scenario") == 0) {
    cistron::dist::run_mpi([&](auto& world) { cistron::test::run_scenario(argv[2], world); }, {std::chrono::seconds(2)});
    return 0;
  }
  int status = 0;
  cistron::dist::run_mpi([&](auto& world) { status = run_tests_on(world, argc, argv); }, {std::chrono::seconds(60)});
  return status;
}
