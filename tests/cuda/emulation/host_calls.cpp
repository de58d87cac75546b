#include "tests/cuda/emulation/host_calls.h"

#include <cuda_runtime.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace emulation {
namespace {

constexpr int kDevices = 2;
constexpr size_t kDeviceBytes = size_t{1} << 30;

struct Stream;
using Clock = std::map<Stream*, uint64_t>;  // how much of each stream's work lies before

struct Graph {
  std::vector<std::function<void()>> work;
  std::vector<cudaGraphNodeType> types;  // of each
};
struct Capture {
  Stream* origin = nullptr;
  Graph graph;
  std::vector<Stream*> streams;
};
struct Stream {
  int priority = 0;
  std::shared_ptr<Capture> capture = {};
  Clock clock = {};  // of the capture
};
struct Event {
  bool timed = false;
  std::shared_ptr<Capture> capture;  // of the last record; null: it was made outside
  Clock clock;
  bool has_time = false;
  uint64_t at_ns = 0;
};

/// The things of one kind that are there.
template <class T>
class Things {
 public:
  void* add(T thing) {
    auto owned = std::make_unique<T>(std::move(thing));
    void* const handle = owned.get();
    all_[handle] = std::move(owned);
    return handle;
  }
  T* find(void* handle) const {
    const auto found = all_.find(handle);
    return found == all_.end() ? nullptr : found->second.get();
  }
  cudaError_t remove(void* handle) {
    return all_.erase(handle) == 1 ? cudaSuccess : fail(cudaErrorInvalidResourceHandle);
  }
  size_t size() const { return all_.size(); }

 private:
  std::map<void*, std::unique_ptr<T>> all_;
};

// Ranks may be threads.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;
Things<Stream> streams;
Things<Event> events;
Things<Graph> graphs;
std::map<void*, std::pair<std::unique_ptr<float4[]>, size_t>> memory;
size_t used_bytes = 0;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;
thread_local bool busy_once = false;

/// Of a stream that captures; others (the default stream, a test's own numbers) do not.
Capture* capture_of(cudaStream_t stream) {
  const Stream* const found = streams.find(stream);
  return found ? found->capture.get() : nullptr;
}

cudaError_t allocate(void** at, size_t bytes) {
  const Lock lock(mutex);
  if (bytes > kDeviceBytes - used_bytes) return fail(cudaErrorMemoryAllocation);
  const size_t vectors = bytes / sizeof(float4) + 1;
  std::unique_ptr<float4[]> block(new float4[vectors]);
  std::memset(static_cast<void*>(block.get()), 0xff, vectors * sizeof(float4));
  *at = block.get();
  memory[*at] = {std::move(block), bytes};
  used_bytes += bytes;
  return cudaSuccess;
}

cudaError_t release(void* at) {
  const Lock lock(mutex);
  const auto found = memory.find(at);
  if (found == memory.end()) return fail(cudaErrorInvalidValue);
  used_bytes -= found->second.second;
  memory.erase(found);
  return cudaSuccess;
}

}  // namespace

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

void give(cudaStream_t stream, std::function<void()> work, cudaGraphNodeType type) {
  {
    const Lock lock(mutex);
    if (Capture* const capture = capture_of(stream)) {
      capture->graph.work.push_back(std::move(work));
      capture->graph.types.push_back(type);
      Stream* const here = streams.find(stream);
      ++here->clock[here];
      return;
    }
  }
  if (!work_takes_time) return work();
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  pass_time(static_cast<uint64_t>(took.count()));
}

bool is_allocated(const void* at, size_t bytes) {
  const Lock lock(mutex);
  auto block = memory.upper_bound(const_cast<void*>(at));
  if (block == memory.begin()) return false;
  --block;
  const auto* const begin = static_cast<const char*>(block->first);
  return static_cast<const char*>(at) + bytes <= begin + block->second.second;
}

size_t things_alive() {
  const Lock lock(mutex);
  return memory.size() + streams.size() + events.size() + graphs.size();
}

void be_busy_once() {
  busy_once = true;
}

}  // namespace emulation

using namespace emulation;

const char* cudaGetErrorString(cudaError_t error) {
  static constexpr const char* kTexts[] = {
      "no error",
      "invalid argument",
      "out of memory",
      "invalid device ordinal",
      "invalid resource handle",
      "device not ready",
      "capture was not joined to the stream that began it",
      "dependency crosses the border of a capture",
      "operation not permitted on an event last recorded in a capture"};
  return kTexts[error];
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"the host's emulation", 132, 9, 0};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 227 << 10;  // compute capability 9.0
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* bytes) {
  const Lock lock(mutex);
  *bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - used_bytes;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13020;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** at, size_t bytes) {
  return emulation::allocate(at, bytes);
}
cudaError_t cudaFree(void* at) {
  return emulation::release(at);
}
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) {
  return emulation::allocate(at, bytes);
}
cudaError_t cudaFreeHost(void* at) {
  return emulation::release(at);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  give(
      stream, [=] { std::memcpy(to, from, bytes); }, cudaGraphNodeTypeMemcpy);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t rows, cudaMemcpyKind, cudaStream_t stream) {
  const auto copy = [=] {
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<char*>(to) + r * to_pitch,
                  static_cast<const char*>(from) + r * from_pitch, width);
  };
  give(stream, copy, cudaGraphNodeTypeMemcpy);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  give(
      stream, [=] { std::memset(to, byte, bytes); }, cudaGraphNodeTypeMemset);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  const Lock lock(mutex);
  *stream = streams.add({.priority = priority});
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const Lock lock(mutex);
  const Stream* const s = streams.find(stream);
  if (stream && !s) return fail(cudaErrorInvalidResourceHandle);
  *priority = s ? s->priority : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex);
  return streams.remove(stream);
}

/// A stream that waits for an event of a capture takes part in it from then on.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex);
  const Event* const e = events.find(event);
  Stream* const s = streams.find(stream);
  if (!e || (stream && !s)) return fail(cudaErrorInvalidResourceHandle);
  if (!e->capture && capture_of(stream)) return fail(cudaErrorStreamCaptureIsolation);
  if (!e->capture) return cudaSuccess;
  if (!s || (s->capture && s->capture != e->capture)) return fail(cudaErrorStreamCaptureIsolation);
  if (!s->capture) {
    s->capture = e->capture;
    s->clock.clear();
    s->capture->streams.push_back(s);
  }
  for (const auto& [other, work] : e->clock) s->clock[other] = std::max(s->clock[other], work);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Lock lock(mutex);
  *event = events.add({.timed = (flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(mutex);
  return events.remove(event);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const Lock lock(mutex);
  Event* const e = events.find(event);
  if (!e) return fail(cudaErrorInvalidResourceHandle);
  const bool captures = capture_of(stream) != nullptr, external = flags == cudaEventRecordExternal;
  if (external && !captures) return fail(cudaErrorInvalidValue);
  if (captures && !external) {
    e->capture = streams.find(stream)->capture;
    e->clock = streams.find(stream)->clock;
    return cudaSuccess;
  }
  e->capture = nullptr;
  const auto keep_time = [e] {
    e->has_time = e->timed;
    e->at_ns = read_clock();
  };
  give(stream, keep_time, cudaGraphNodeTypeEventRecord);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  const Event* const e = events.find(event);
  if (!e) return fail(cudaErrorInvalidResourceHandle);
  if (e->capture) return fail(cudaErrorCapturedEvent);
  return std::exchange(busy_once, false) ? fail(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const Lock lock(mutex);
  const Event *const f = events.find(from), *const t = events.find(to);
  if (!f || !t || !f->has_time || !t->has_time) return fail(cudaErrorInvalidResourceHandle);
  *ms = static_cast<float>(1e-6 * (static_cast<double>(t->at_ns) - static_cast<double>(f->at_ns)));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(mutex);
  *status = capture_of(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(mutex);
  Stream* const s = streams.find(stream);
  if (!s || s->capture) return fail(cudaErrorInvalidValue);
  s->capture = std::make_shared<Capture>();
  s->capture->origin = s;
  s->capture->streams = {s};
  s->clock.clear();
  return cudaSuccess;
}
/// All other streams' work must lie before the end of the one that began.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(mutex);
  Stream* const s = streams.find(stream);
  if (!s || !s->capture || s->capture->origin != s) return fail(cudaErrorInvalidValue);
  const std::shared_ptr<Capture> capture = s->capture;
  bool joined = true;
  for (Stream* const other : capture->streams) joined &= s->clock[other] >= other->clock[other];
  for (Stream* const other : capture->streams) other->capture = nullptr;
  if (!joined) return fail(cudaErrorStreamCaptureUnjoined);
  *graph = graphs.add(std::move(capture->graph));
  return cudaSuccess;
}
/// A node is a pointer to its type.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  const Lock lock(mutex);
  const Graph* const found = graphs.find(graph);
  if (!found) return fail(cudaErrorInvalidValue);
  *count = found->types.size();
  for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = &found->types[i];
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = *static_cast<const cudaGraphNodeType*>(node);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(mutex);
  return graphs.remove(graph);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  const Lock lock(mutex);
  *made = graphs.add(*graphs.find(graph));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  std::vector<std::function<void()>> work;
  {
    const Lock lock(mutex);
    const Graph* const found = graphs.find(graph);
    if (!found) return fail(cudaErrorInvalidResourceHandle);
    work = found->work;
  }
  for (auto& one : work) give(stream, std::move(one));
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  const Lock lock(mutex);
  return graphs.remove(graph);
}
