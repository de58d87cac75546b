// The calls of cuDNN that attention is made with. The library is no part of what the plugin links
// against: it is taken where the process finds it when it is first asked for.
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

/// Null where there is no library with all of them. The same whenever it is asked.
const CudnnCalls* cudnn_calls();

}  // namespace moe::kernels::cuda
