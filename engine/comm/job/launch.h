// How this process was started, according to its environment variables: alone, by an MPI launcher,
// or with the variables that torchrun (or any shell) sets. When both kinds are set and the build
// has MPI, MPI is used. Connecting the processes is in transport/, not here.
#pragma once

#include <cstdint>
#include <string>

namespace moe {

struct Launch {
  enum class By : uint8_t { kAlone, kMpi, kVariables };
  By by = By::kAlone;
  /// This process's rank; 0 if alone, or if RANK is invalid: this process then reports the error.
  int64_t rank = 0;
};
/// Returns kMpi if an MPI launcher's variables are set, kVariables if at least two of RANK,
/// WORLD_SIZE and MASTER_ADDR are, else kAlone; if both are: kMpi in a build with MPI, else
/// kVariables.
Launch launch();

/// The job that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe.
struct TcpJob {
  int64_t rank = 0, size = 1;
  std::string address;
  /// The port at which rank 0 listens for the others: MOEBENCH_PORT, or else MASTER_PORT + 1, since
  /// torchrun itself may listen at MASTER_PORT.
  int64_t port = 0;
  /// How many seconds processes wait for each other at the start: MOEBENCH_CONNECT_S, or else 60.
  double connect_s = 60;
  /// A hash that is the same in all processes of a job and that another job is unlikely to have.
  uint64_t id = 0;
};
/// Reads the job from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MOEBENCH_PORT and
/// MOEBENCH_CONNECT_S. Throws UserError naming a missing or wrong variable and its value.
TcpJob tcp_job();

}  // namespace moe
