// Collectives between processes: by NCCL in nccl.cpp, or none in nccl_none.cpp where the build
// found no NCCL. The build takes one of the two.
#pragma once

#include <string>

#include "kernels/device.h"

namespace moe::kernels::cuda {

/// Null in a build without NCCL.
const ProcessGroupTable* process_groups();
/// "NCCL 2.28.9" or "no NCCL".
std::string nccl_version();

}  // namespace moe::kernels::cuda
