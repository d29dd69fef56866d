#include "cistron/dist/mpi.h"

#include "cistron/core/error.h"

namespace cistron::dist {

void run_mpi(const std::function<void(Communicator&)>& /*fn*/, const Options& /*options*/) {
  throw Error(ErrorKind::kUsage, "ranks as processes", "this program was built without MPI",
              "install libopenmpi-dev and openmpi-bin and build again, or use --ranks N without mpirun");
}

}  // namespace cistron::dist
