// Collectives between processes. nccl.cpp implements this header with NCCL; nccl_none.cpp is built
// instead where NCCL was not found. The emulated link is in link.cu.
#pragma once

#include <string>

#include "kernels/device.h"

namespace moe::kernels::cuda {

/// Returns null in a build without NCCL.
const ProcessGroupTable* process_groups();
/// Returns "NCCL 2.28.9" or "no NCCL".
std::string nccl_version();

}  // namespace moe::kernels::cuda
