// In place of the library that the plugin would find when it runs.
#include "kernels/cuda/attention/cudnn_calls.h"

namespace moe::kernels::cuda {

const CudnnCalls* cudnn_calls() {
  static const CudnnCalls calls = {
      .version = cudnnGetVersion,
      .error_string = cudnnGetErrorString,
      .create = cudnnCreate,
      .set_stream = cudnnSetStream,
      .create_descriptor = cudnnBackendCreateDescriptor,
      .destroy_descriptor = cudnnBackendDestroyDescriptor,
      .set_attribute = cudnnBackendSetAttribute,
      .get_attribute = cudnnBackendGetAttribute,
      .finalize = cudnnBackendFinalize,
      .execute = cudnnBackendExecute,
  };
  return emulation::cudnn_knobs.version == 0 ? nullptr : &calls;
}

}  // namespace moe::kernels::cuda
