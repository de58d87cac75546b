// Checks whether a call of the CUDA runtime worked. A failure is kept by errors.h and cleared in
// the runtime, which would otherwise report it again to the next call that asks for the last error.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/errors.h"

namespace moe::kernels::cuda {

/// Returns whether `error` is success. If not, keeps a message such as "cuda: <what>: out of
/// memory", where `what` names the call.
inline bool worked(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  keep_error(std::string("cuda: ") + what + ": " + cudaGetErrorString(error));
  cudaGetLastError();
  return false;
}

}  // namespace moe::kernels::cuda
