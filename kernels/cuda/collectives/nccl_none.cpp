// A build without NCCL: one process a job.
#include "kernels/cuda/collectives/cliques.h"

namespace moe::kernels::cuda {

const CliqueTable* cliques() {
  return nullptr;
}

std::string clique_version() {
  return "no NCCL";
}

}  // namespace moe::kernels::cuda
