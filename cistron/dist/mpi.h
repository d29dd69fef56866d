#pragma once
// Ranks that are processes, started by `mpirun` or `srun`. Open MPI 4 or newer; built without it, `run_mpi` says how to get it.
#include <functional>

#include "cistron/dist/communicator.h"

namespace cistron::dist {

/// A launcher has started this process as one of its ranks.
[[nodiscard]] bool launched_by_mpi();

/// Runs `fn` on this process's communicator of the world, between MPI's start and its end; once in a process. All ranks must
/// come to the end of `fn`. When it throws, says so on standard error with the rank and ends every rank through MPI_Abort, with
/// the error's exit status: other ranks cannot be told in another way, and MPI cannot go on without one.
void run_mpi(const std::function<void(Communicator&)>& fn, const Options& options = {});

}  // namespace cistron::dist
