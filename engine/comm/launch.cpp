#include "engine/comm/launch.h"

#include <cstdlib>

namespace moe {
namespace {

/// The variables by which launchers tell a process its number and how many there are. PMIx
/// (srun --mpi=pmix) tells the second to the library alone; what Slurm sets counts only beside it,
/// since it stands also in the shell of an allocation.
struct Variables {
  const char* rank;
  const char* size;  // null: not told
};
constexpr Variables kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                    {"PMI_RANK", "PMI_SIZE"},
                                    {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
                                    {"PMIX_RANK", nullptr}};

int64_t number(const char* variable) {
  const char* const text = variable != nullptr ? std::getenv(variable) : nullptr;
  return text != nullptr ? std::strtoll(text, nullptr, 10) : -1;
}

}  // namespace

Launch launch() {
  for (const Variables& launcher : kLaunchers) {
    const int64_t rank = number(launcher.rank), size = number(launcher.size);
    if (rank < 0 || (launcher.size != nullptr && size < 0)) continue;
    return {true, rank, launcher.size != nullptr ? size : 0};
  }
  return {};
}

}  // namespace moe
