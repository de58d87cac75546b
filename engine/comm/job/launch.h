// Whether an MPI launcher (mpirun, srun) started this process, according to its environment
// variables. Connecting the processes is in transport/, not here.
#pragma once

#include <cstdint>
#include <optional>

namespace moe {

/// Returns the rank that an MPI launcher gave this process; nullopt for a process started alone.
std::optional<int64_t> launched_rank();

}  // namespace moe
