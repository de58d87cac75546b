// Recordings: what streams are given is captured as a CUDA graph and launched again as one piece.
#include <cuda_runtime.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {

/// Relaxed: a thread that allocates while another records, or the first GEMM of a stream, which
/// makes a handle of cuBLAS, would else end the recording.
void begin_recording(Stream stream) {
  worked(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeRelaxed),
         "begin_recording");
}

Recording end_recording(Stream stream) {
  cudaGraph_t graph = nullptr;
  if (!worked(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph), "end_recording"))
    return nullptr;
  cudaGraphExec_t recording = nullptr;
  // Otherwise all nodes get the priority of the stream that the replay is given to.
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
