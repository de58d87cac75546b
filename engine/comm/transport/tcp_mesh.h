// The connections of a job without MPI: rank 0 listens, the others come to it and are told of each
// other, and every two are connected. Whoever does not say what a process of this job says is
// turned away; one of the job that is not wanted (another WORLD_SIZE, a rank that is there already)
// is told why. Nobody listens any more once all are connected.
#pragma once

#include <vector>

#include "engine/comm/job/launch.h"
#include "engine/comm/transport/sockets.h"

namespace moe {

struct TcpMesh {
  std::vector<Socket> peers;  // by rank; the own one is closed
  int64_t size_here = 1;      // processes on this machine
  int64_t place_here = 0;     // this one's place among them
};

/// Waits for all processes, for job.connect_s. Throws RunError naming those that did not come, or
/// what cannot be reached and how long it was tried.
TcpMesh connect_all(const TcpJob& job);

}  // namespace moe
