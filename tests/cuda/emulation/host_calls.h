// The host's side of the emulated runtime: memory, streams, events and captures, as far as
// kernels/cuda calls them. What a stream is given runs at once, or is kept where the stream
// captures; so the order of streams is the order of the calls, and no wait is ever needed.
// Strict: memory is filled with bytes that make NaN; memory, streams and events that are not, or
// no more, there are refused, as are captures that cross or do not come together, and times of
// events that have none; an error that nobody has cleared fails the next launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

using cudaStream_t = void*;
using cudaEvent_t = void*;
using cudaGraph_t = void*;
using cudaGraphExec_t = void*;
using cudaGraphNode_t = const void*;
enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInvalidDevice,
  cudaErrorInvalidResourceHandle,
  cudaErrorNotReady,
  cudaErrorStreamCaptureUnjoined,
  cudaErrorStreamCaptureIsolation,
  cudaErrorCapturedEvent
};
enum cudaMemcpyKind { cudaMemcpyDefault, cudaMemcpyDeviceToDevice };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaGraphNodeType {
  cudaGraphNodeTypeKernel,
  cudaGraphNodeTypeMemcpy,
  cudaGraphNodeTypeMemset,
  cudaGraphNodeTypeEventRecord
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
constexpr unsigned cudaHostAllocPortable = 1, cudaStreamNonBlocking = 1, cudaEventDefault = 0,
                   cudaEventDisableTiming = 2, cudaEventRecordDefault = 0,
                   cudaEventRecordExternal = 1, cudaEventWaitDefault = 0,
                   cudaGraphInstantiateFlagUseNodePriority = 8;
struct cudaDeviceProp {
  char name[256];
  int multiProcessorCount, major, minor;
};

const char* cudaGetErrorString(cudaError_t error);
/// The last one of this thread, which is then cleared.
cudaError_t cudaGetLastError();

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* bytes);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);

cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

namespace emulation {

/// Runs the work, or keeps it where the stream captures, as a node of this type.
void give(cudaStream_t stream, std::function<void()> work,
          cudaGraphNodeType type = cudaGraphNodeTypeKernel);
/// As a failed call would leave it.
cudaError_t fail(cudaError_t error);
/// So many bytes lie in memory that was allocated and not given back.
bool is_allocated(const void* at, size_t bytes);
/// Memory, streams, events and graphs that have not been given back.
size_t things_alive();
/// The next cudaEventQuery of this thread finds work under way.
void be_busy_once();

}  // namespace emulation
