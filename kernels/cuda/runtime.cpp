// The part of the device table that calls the CUDA runtime: devices, memory, streams, events,
// copies. The functions only add flags, with the reasons given here; the runtime does all else.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "kernels/cuda/attention/attention_library.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/collectives/process_groups.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

/// An event, and whether it is timed, because the runtime does not report that.
struct OneEvent {
  cudaEvent_t event;
  bool timed;
};

cudaStream_t stream_of(Stream stream) {
  return static_cast<cudaStream_t>(stream);
}
OneEvent& event_of(Event event) {
  return *static_cast<OneEvent*>(event);
}

/// Returns `bytes`, rounded up to whole vectors of 16 bytes, at least one, so that a null pointer
/// always means failure. cuBLAS reads the last row of a matrix in words or vectors, also beyond the
/// row's end where rows lie further apart than they are long; memcheck showed 4 bytes read at the
/// last 2. A negative number becomes larger than any memory and fails.
size_t whole_vectors(int64_t bytes) {
  constexpr int64_t kVector = 16;
  if (bytes < 0) return static_cast<size_t>(bytes);
  return static_cast<size_t>(std::max(bytes, int64_t{1}) + kVector - 1) / kVector * kVector;
}

/// Converts a version number of the runtime or driver: 13020 is "13.2".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string cublas_version() {
  int major = 0, minor = 0, patch = 0;
  cublasGetProperty(MAJOR_VERSION, &major);
  cublasGetProperty(MINOR_VERSION, &minor);
  cublasGetProperty(PATCH_LEVEL, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

template <size_t Size>
void put(char (&to)[Size], const std::string& text) {
  std::snprintf(to, Size, "%s", text.c_str());
}

}  // namespace

int32_t num_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

void use_device(int32_t device) {
  worked(cudaSetDevice(device), "use_device");
}

DeviceInfo info() {
  DeviceInfo info{};
  int device = 0, driver = 0, runtime = 0;
  size_t free_bytes = 0, bytes = 0;
  cudaDeviceProp properties{};
  const bool all = worked(cudaGetDevice(&device), "info") &&
                   worked(cudaGetDeviceProperties(&properties, device), "info") &&
                   worked(cudaMemGetInfo(&free_bytes, &bytes), "info") &&
                   worked(cudaDriverGetVersion(&driver), "info") &&
                   worked(cudaRuntimeGetVersion(&runtime), "info");
  if (!all) return info;
  put(info.name, properties.name);
  put(info.versions, "driver " + version_text(driver) + ", runtime " + version_text(runtime) +
                         ", cuBLAS " + cublas_version() + ", " + nccl_version() + ", " +
                         attention_library_version() + ", build " + MOE_CUDA_BUILD);
  info.memory_bytes = static_cast<int64_t>(bytes);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.multiprocessors = properties.multiProcessorCount;
  info.major = properties.major;
  info.minor = properties.minor;
  return info;
}

void* allocate(int64_t bytes) {
  void* memory = nullptr;
  const std::string what = "allocate " + std::to_string(bytes) + " bytes";
  return worked(cudaMalloc(&memory, whole_vectors(bytes)), what.c_str()) ? memory : nullptr;
}

void release(void* memory) {
  if (memory != nullptr) worked(cudaFree(memory), "release");
}

void* allocate_host(int64_t bytes) {
  void* memory = nullptr;
  const std::string what = "allocate_host " + std::to_string(bytes) + " bytes";
  // Portable, because ranks in one process may use different devices.
  return worked(cudaHostAlloc(&memory, whole_vectors(bytes), cudaHostAllocPortable), what.c_str())
             ? memory
             : nullptr;
}

void release_host(void* memory) {
  if (memory != nullptr) worked(cudaFreeHost(memory), "release_host");
}

Stream make_stream(bool urgent) {
  int least = 0, greatest = 0;
  cudaStream_t stream = nullptr;
  // Non-blocking: the stream does not wait for work that other code queues on the default stream.
  const bool all = worked(cudaDeviceGetStreamPriorityRange(&least, &greatest), "make_stream") &&
                   worked(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                       urgent ? greatest : least),
                          "make_stream");
  return all ? stream : nullptr;
}

void end_stream(Stream stream) {
  if (stream == nullptr) return;
  forget_gemm(stream);
  worked(cudaStreamDestroy(stream_of(stream)), "end_stream");
}

Event make_event(bool timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
  if (!worked(cudaEventCreateWithFlags(&event, flags), "make_event")) return nullptr;
  return new OneEvent{event, timed};
}

void end_event(Event event) {
  if (event == nullptr) return;
  worked(cudaEventDestroy(event_of(event).event), "end_event");
  delete &event_of(event);
}

void record(Event event, Stream stream) {
  const OneEvent& e = event_of(event);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (e.timed && !worked(cudaStreamIsCapturing(stream_of(stream), &status), "record an event"))
    return;
  // Without this flag, an event in a recording only orders its streams and never gets a time.
  const unsigned flags =
      status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  worked(cudaEventRecordWithFlags(e.event, stream_of(stream), flags), "record an event");
}

void wait(Stream stream, Event event) {
  worked(cudaStreamWaitEvent(stream_of(stream), event_of(event).event, cudaEventWaitDefault),
         "wait for an event");
}

bool over(Event event) {
  const cudaError_t error = cudaEventQuery(event_of(event).event);
  if (error != cudaErrorNotReady) return worked(error, "query an event");
  cudaGetLastError();  // otherwise the next launch would seem to have failed
  return false;
}

double elapsed_ns(Event from, Event to) {
  float ms = 0;
  const cudaError_t error = cudaEventElapsedTime(&ms, event_of(from).event, event_of(to).event);
  return worked(error, "elapsed_ns") ? 1e6 * static_cast<double>(ms) : 0;
}

void copy(void* to, const void* from, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  worked(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_of(stream)),
      "copy bytes");
}

void fill(void* to, int32_t byte, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  worked(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_of(stream)), "fill");
}

}  // namespace moe::kernels::cuda
