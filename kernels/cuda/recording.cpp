// Recordings: the work queued on streams is captured as a CUDA graph and launched again as a whole.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {

namespace {

struct Recorded {
  cudaGraphExec_t graph = nullptr;
  int64_t launches = 0;
};

int64_t count_kernels(cudaGraph_t graph) {
  size_t count = 0;
  if (!worked(cudaGraphGetNodes(graph, nullptr, &count), "end_recording")) return 0;
  std::vector<cudaGraphNode_t> nodes(count);
  if (!worked(cudaGraphGetNodes(graph, nodes.data(), &count), "end_recording")) return 0;
  return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    worked(cudaGraphNodeGetType(node, &type), "end_recording");
    return type == cudaGraphNodeTypeKernel;
  });
}

}  // namespace

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
  Recorded recorded{.launches = count_kernels(graph)};
  // Without this flag all nodes get the priority of the stream on which the recording is replayed.
  const cudaError_t error =
      cudaGraphInstantiate(&recorded.graph, graph, cudaGraphInstantiateFlagUseNodePriority);
  const bool made = worked(error, "end_recording");
  worked(cudaGraphDestroy(graph), "end_recording");
  return made ? new Recorded(recorded) : nullptr;
}

int64_t launches(Recording recording) {
  return static_cast<const Recorded*>(recording)->launches;
}

void replay(Recording recording, Stream stream) {
  worked(cudaGraphLaunch(static_cast<const Recorded*>(recording)->graph,
                         static_cast<cudaStream_t>(stream)),
         "replay");
}

void release_recording(Recording recording) {
  const std::unique_ptr<Recorded> recorded(static_cast<Recorded*>(recording));
  if (recorded) worked(cudaGraphExecDestroy(recorded->graph), "release_recording");
}

}  // namespace moe::kernels::cuda
