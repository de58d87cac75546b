// A build without MPI: there is never a job, so nothing else of Mpi is ever called.
#include <cstdlib>

#include "engine/base/errors.h"
#include "engine/comm/mpi.h"

namespace moe {

struct Mpi::Impl {};
struct Messages::State {};

std::string mpi_library() {
  return "";
}

Mpi::Mpi() {
  throw user_error(
      "started by an MPI launcher, but this build has no MPI: install libopenmpi-dev and "
      "openmpi-bin and build again, or start the program without a launcher");
}
Mpi::~Mpi() = default;
int64_t Mpi::rank() const {
  return 0;
}
int64_t Mpi::size() const {
  return 1;
}
int64_t Mpi::size_here() const {
  return 1;
}
int64_t Mpi::open_channel() {
  return 0;
}
std::optional<Mpi::Letter> Mpi::read(int64_t) {
  return std::nullopt;
}
void Mpi::finish() {}
void Mpi::abort(int status) {
  std::_Exit(status);
}

Messages::Messages(Mpi& mpi) : mpi_(mpi) {}
Messages::~Messages() = default;
void Messages::send(int64_t, int64_t, int, const void*, Bytes) {}
void Messages::receive(int64_t, int64_t, int, void*, Bytes) {}
bool Messages::over() {
  return true;
}
std::vector<int64_t> Messages::missing() const {
  return {};
}
void Messages::give_up() {}

}  // namespace moe
