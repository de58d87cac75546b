// How this process was started, as the environment variables of launchers say: those of MPI's, or
// those that torchrun sets and any shell can. Where both are there and the build has MPI, by MPI.
#pragma once

#include <cstdint>
#include <string>

namespace moe {

struct Launch {
  enum class By : uint8_t { kAlone, kMpi, kVariables };
  By by = By::kAlone;
  /// 0 also where RANK is wrong: such a process speaks for itself.
  int64_t rank = 0;
};
/// By variables where two of RANK, WORLD_SIZE and MASTER_ADDR are set.
Launch launch();

/// The job that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe.
struct TcpJob {
  int64_t rank = 0, size = 1;
  std::string address;
  /// Where rank 0 waits for the others: MOEBENCH_PORT, else MASTER_PORT + 1, since torchrun itself
  /// may listen at MASTER_PORT.
  int64_t port = 0;
  /// How long processes wait for each other at the start: MOEBENCH_CONNECT_S, else 60.
  double connect_s = 60;
  /// The same in all processes of a job, and hardly in another's.
  uint64_t id = 0;
};
/// Throws UserError naming the variable and its value.
TcpJob tcp_job();

}  // namespace moe
