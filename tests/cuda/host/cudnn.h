// Stands in for cuDNN 9's backend interface where a test compiles kernels/cuda for the host: graphs
// of operations, engines for them, and plans that work the operations off one by one in double,
// rounding each tensor to its type. What the library refuses is refused with its status and a
// sentence; what it would not notice (a pointer that is not aligned, tensors that overlap, a
// virtual tensor that nothing wrote) throws. It knows the operations of attention and no engine's
// limits: which graphs the library has a kernel for is not to be learned here. Its functions are in
// tests/cuda/cudnn.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda/host/cudnn_attributes.h"
#include "tests/cuda/host/cudnn_names.h"

struct cudnnContext;
using cudnnHandle_t = cudnnContext*;
using cudnnBackendDescriptor_t = void*;

extern "C" {

size_t cudnnGetVersion();
const char* cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind,
                                           cudnnBackendDescriptor_t* descriptor);
/// Descriptors that were given to others live on in those.
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements);
/// Of up to `requested` elements; null elements or none requested: how many there are. Elements
/// that are descriptors become copies of what there is: the caller has made them, of its kind.
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* elements);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
/// As the stream of the handle has work done: at once, or when its capture is launched.
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack);

}  // extern "C"

namespace emulation {

/// What the library is to be; tests set it, and then back to {}.
struct CudnnKnobs {
  size_t version = 91900;
  bool create_fails = false;
  /// Engine configurations that the heuristics offer: engines 0, 1 ..
  int64_t engines = 3;
  std::set<int64_t> nondeterministic;
  /// Engines below this one refuse to become plans.
  int64_t first_supported = 0;
  int64_t workspace_bytes = 4096;
};
inline CudnnKnobs cudnn_knobs;

/// Since a test set them to {}; by the number of the engine.
struct CudnnCalls {
  std::map<int64_t, int> plans, executions;
  /// Why calls were refused for their parameters, whatever the caller made of it.
  std::vector<std::string> bad_params;
};
inline CudnnCalls cudnn_calls;

}  // namespace emulation
