// Recordings: the work queued on streams is captured as a CUDA graph and launched again as a whole.
#include <cuda_runtime.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {

/// The mode is relaxed: in another mode, the recording would fail when another thread allocates
/// memory, or when the first GEMM on a stream creates a cuBLAS handle.
void begin_recording(Stream stream) {
  worked(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeRelaxed),
         "begin_recording");
}

Recording end_recording(Stream stream) {
  cudaGraph_t graph = nullptr;
  if (!worked(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph), "end_recording"))
    return nullptr;
  cudaGraphExec_t recording = nullptr;
  // Without this flag all nodes get the priority of the stream on which the recording is replayed.
  const cudaError_t error =
      cudaGraphInstantiate(&recording, graph, cudaGraphInstantiateFlagUseNodePriority);
  const bool made = worked(error, "end_recording");
  worked(cudaGraphDestroy(graph), "end_recording");
  return made ? recording : nullptr;
}

void replay(Recording recording, Stream stream) {
  worked(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(recording), static_cast<cudaStream_t>(stream)),
      "replay");
}

void release_recording(Recording recording) {
  if (recording == nullptr) return;
  worked(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(recording)), "release_recording");
}

}  // namespace moe::kernels::cuda
