#include <array>
#include <cstdlib>

#include "cistron/dist/mpi.h"

namespace cistron::dist {

bool launched_by_mpi() {
  // Open MPI's mpirun; srun --mpi=pmix; srun --mpi=pmi2 and other launchers.
  constexpr std::array kMarks{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
  for (const char* mark : kMarks) {
    if (std::getenv(mark)) return true;  // NOLINT(concurrency-mt-unsafe): read before there are threads
  }
  return false;
}

}  // namespace cistron::dist
