// Process groups in a build without NCCL: there are none, so a run on GPUs must be one process.
#include "kernels/cuda/collectives/process_groups.h"

namespace moe::kernels::cuda {

const ProcessGroupTable* process_groups() {
  return nullptr;
}

std::string nccl_version() {
  return "no NCCL";
}

}  // namespace moe::kernels::cuda
