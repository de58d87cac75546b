// One answer to a call of the CUDA runtime: whether it worked. A failure is kept in errors.h, and
// cleared in the runtime, which would hand it to the next one that asks for the last error.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/errors.h"

namespace moe::kernels::cuda {

/// `what` names the call in the message: "cuda: WHAT: out of memory".
inline bool worked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  keep_error(std::string("cuda: ") + what + ": " + cudaGetErrorString(error));
  cudaGetLastError();
  return false;
}

}  // namespace moe::kernels::cuda
