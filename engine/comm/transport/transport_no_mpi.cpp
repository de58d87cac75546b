// Replaces transport_mpi.cpp in a build without MPI.
#include "engine/base/errors.h"
#include "engine/comm/transport/transport.h"

namespace moe {

std::string mpi_library() {
  return "";
}

std::unique_ptr<Transport> open_transport() {
  throw user_error(
      "this process was started by an MPI launcher, but this build has no MPI: install "
      "libopenmpi-dev and openmpi-bin and build again, or start it without a launcher");
}

}  // namespace moe
