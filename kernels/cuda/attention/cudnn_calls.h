// The functions of cuDNN that attention uses. The plugin is not linked against cuDNN; it opens the
// library at run time, when attention first needs it.
#pragma once

#include <cudnn.h>

namespace moe::kernels::cuda {

struct CudnnCalls {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnCreate) create;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

/// Returns the functions, opening cuDNN at the first call; null if no cuDNN has all of them.
const CudnnCalls* cudnn_calls();

}  // namespace moe::kernels::cuda
