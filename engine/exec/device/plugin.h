// Finds and opens the shared library with the device code. The program does not link against it, so
// that the same program runs on machines without a driver or CUDA libraries.
#pragma once

#include <string>

#include "kernels/device.h"

namespace moe {

struct CudaPlugin {
  const kernels::DeviceTable* table = nullptr;  // null: `missing` has the reason
  std::string path;                             // "" when none was found
  std::string missing;
};

/// Opens the plugin, once per process. It is searched for at the path in MOEBENCH_CUDA_PLUGIN;
/// without that variable, next to the program, in the program's build folder, and where it would be
/// installed.
const CudaPlugin& cuda_plugin();

}  // namespace moe
