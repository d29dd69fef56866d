#pragma once
#include <string>

#include "cistron/dist/communicator.h"

namespace cistron::test {

/// One way in which rank 1 of a world of processes goes wrong (or does not); mpi_test.py knows what must come of it.
void run_scenario(const std::string& name, dist::Communicator& world);

}  // namespace cistron::test
