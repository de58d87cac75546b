// The cases of this folder on the host's emulation. Nothing here runs on a GPU.
#include "tests/cuda/emulation/emulated.h"

#include "tests/gpu/gpu.h"

extern "C" const moe::kernels::DeviceTable* moe_cuda_device();

namespace moe::test {

const kernels::DeviceTable& gpu() {
  return *moe_cuda_device();
}

const kernels::KernelTable<float>& device_table() {
  return kernels::cuda::table();
}

const kernels::KernelTable<kernels::Bf16>& device_mixed() {
  return kernels::cuda::table_mixed();
}

std::string device_error() {
  return kernels::cuda::take_error();
}

void begin_run(uint64_t run) {
  emulation::set_order(run);
}

}  // namespace moe::test
