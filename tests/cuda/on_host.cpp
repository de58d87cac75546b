// The plugin for the host as a library, for the program to open: MOEBENCH_CUDA_PLUGIN. All of it is
// in what this links; a use of its one symbol brings that in.
#include "kernels/device.h"

extern "C" const moe::kernels::DeviceTable* moe_cuda_device();

extern "C" const moe::kernels::DeviceTable* moe_cuda_on_host() {
  return moe_cuda_device();
}
