// The connections of a job without MPI: rank 0 listens, the others connect to it and receive the
// addresses of all, and every two ranks get connected. A connection that does not begin with this
// job's greeting (Hello in tcp_mesh.cpp) is closed. A process of this job that does not fit
// (another WORLD_SIZE, or a rank that is already connected) is rejected with the reason. No process
// listens any more once all are connected. Messages over the connections are in transport_tcp.cpp.
#pragma once

#include <vector>

#include "engine/comm/job/launch.h"
#include "engine/comm/transport/sockets.h"

namespace moe {

struct TcpMesh {
  std::vector<Socket> peers;  // indexed by rank; this rank's own socket is closed
  int64_t size_here = 1;      // processes on this machine
  int64_t place_here = 0;     // index of this process among them
};

/// Connects all processes; waits up to job.connect_s for them. Throws RunError, which names the
/// ranks that did not connect, or what could not be reached and for how long it was tried.
TcpMesh connect_all(const TcpJob& job);

}  // namespace moe
