// What the shared library shows: C names for dlsym. The program is to open it only when a GPU is
// asked for, so that it runs where there is neither driver nor CUDA library.
#include <cuda_runtime.h>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/table.h"

extern "C" {

const moe::kernels::KernelTable<float>* moe_cuda_table() {
  return &moe::kernels::cuda::table();
}

/// The first failed launch of this thread since the last call, or "". Valid until the next call.
const char* moe_cuda_take_error() {
  static thread_local std::string message;
  message = moe::kernels::cuda::take_error();
  return message.c_str();
}

/// GPUs that the driver shows; 0 where there is no driver.
int moe_cuda_num_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
}
