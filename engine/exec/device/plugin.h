// Finds and opens the library with the device code. The program does not link against it, so that
// the same program runs where there is neither driver nor CUDA library.
#pragma once

#include <string>

#include "kernels/device.h"

namespace moe {

struct CudaPlugin {
  const kernels::DeviceTable* table = nullptr;  // null: `missing` says why
  std::string path;                             // "" where none was found
  std::string missing;
};

/// Opened once in a process. Looked for where MOEBENCH_CUDA_PLUGIN says, beside the program, in its
/// build folder, and where it would be installed.
const CudaPlugin& cuda_plugin();

}  // namespace moe
