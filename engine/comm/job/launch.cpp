#include "engine/comm/job/launch.h"

#include <cstdlib>

namespace moe {
namespace {

/// Environment variables in which MPI's launchers give a process its rank and the number of
/// processes. PMIx (srun --mpi=pmix) sets no variable with the number of processes.
struct Variables {
  const char* rank;
  const char* size;  // null: the launcher sets none
};
constexpr Variables kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                    {"PMI_RANK", "PMI_SIZE"},
                                    {"PMIX_RANK", nullptr}};

int64_t number(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoll(text, nullptr, 10) : -1;
}

}  // namespace

std::optional<int64_t> launched_rank() {
  for (const Variables& launcher : kLaunchers) {
    const int64_t rank = number(launcher.rank);
    if (rank >= 0 && (launcher.size == nullptr || number(launcher.size) >= 0)) return rank;
  }
  return std::nullopt;
}

}  // namespace moe
