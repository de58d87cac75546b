// Attention by cuDNN: one graph of cudnn-frontend per direction and shape. The plugin is not linked
// against cuDNN; it opens the library at run time, when attention first needs it.
#include "kernels/cuda/attention/cudnn_attention.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/attention/attention_library.h"
#include "kernels/cuda/check.h"

/// The library in which cudnn-frontend looks for cuDNN's functions.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace moe::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;
using Pointers = std::unordered_map<int64_t, void*>;  // by CudnnId

enum CudnnId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kContext,
  kLse,  // lse: logarithm of the sum of exponentials of a row
  kDquery,
  kDkey,
  kDvalue,
  kDcontext,
};

/// Throws what a call of cudnn-frontend reports, which itself throws std::runtime_error, too.
void take(fe::error_t error) {
  if (error.is_bad()) throw std::runtime_error(error.get_message());
}

/// Describes tensors of a graph. The axes are [batch, heads, seq, column].
struct Layout {
  AttentionShape s;

  Tensor columns(int64_t id, int64_t pitch, Tensor t) const {
    t->set_uid(id)
        .set_dim({s.batch, s.heads, s.seq, s.head_dim})
        .set_stride({s.seq * pitch, s.head_dim, pitch, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
    return t;
  }
  Tensor rows(int64_t id, Tensor t) const {
    t->set_uid(id)
        .set_dim({s.batch, s.heads, s.seq, 1})
        .set_stride({s.heads * s.seq, s.seq, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
    return t;
  }
};

/// Returns the graph of one direction for a device of this compute capability. Its plans must not
/// be destroyed before recordings of them.
std::shared_ptr<Graph> attention_graph(AttentionShape s, Direction direction, int32_t capability) {
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT)
      .set_sm_version(capability)
      .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
  const Layout layout = {s};
  const int64_t hidden = s.heads * s.head_dim;
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  const auto input = [&] { return graph->tensor(fe::graph::Tensor_attributes()); };
  const Tensor q = layout.columns(kQuery, s.q_pitch, input());
  const Tensor k = layout.columns(kKey, s.k_pitch, input());
  const Tensor v = layout.columns(kValue, s.v_pitch, input());
  if (direction == Direction::kForward) {
    // cuDNN's other implementation, a single operation, has not been measured.
    const auto [ctx, lse] =
        graph->sdpa(q, k, v,
                    fe::graph::SDPA_attributes()
                        .set_name("attention")
                        .set_causal_mask(true)
                        .set_attn_scale(scale)
                        .set_generate_stats(true)
                        .set_implementation(fe::AttentionImplementation_t::COMPOSITE));
    layout.columns(kContext, hidden, ctx)->set_output(true);
    layout.rows(kLse, lse)->set_output(true);
    return graph;
  }
  const auto [dq, dk, dv] =
      graph->sdpa_backward(q, k, v, layout.columns(kContext, hidden, input()),
                           layout.columns(kDcontext, hidden, input()), layout.rows(kLse, input()),
                           fe::graph::SDPA_backward_attributes()
                               .set_name("attention_dx")
                               .set_causal_mask(true)
                               .set_attn_scale(scale)
                               .set_deterministic_algorithm(true));
  layout.columns(kDquery, s.q_pitch, dq)->set_output(true);
  layout.columns(kDkey, s.k_pitch, dk)->set_output(true);
  layout.columns(kDvalue, s.v_pitch, dv)->set_output(true);
  return graph;
}

/// Asks cuDNN's heuristic for engines that give the same bits on every run; throws if it has none.
/// `handle` may be null if the graph has the properties of a device.
void find_engines(Graph& graph, cudnnHandle_t handle) {
  take(graph.validate());
  take(graph.build_operation_graph(handle));
  take(graph.create_execution_plans({fe::HeurMode_t::A}));
  graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
  take(graph.check_support());
}

/// A direction (forward or backward) and the sizes of a shape.
using Key = std::tuple<Direction, int64_t, int64_t, int64_t, int64_t>;

struct Device {
  cudnnHandle_t handle = nullptr;  // null if the library does not work on this device
  int32_t capability = 0;
  std::map<Key, std::shared_ptr<Graph>> graphs;  // null where cuDNN can make no plan
};

/// One cuDNN handle per device. It is set to the stream of each call, so calls hold the mutex.
struct Devices {
  std::mutex mutex;
  std::map<int, Device> of;
};

/// Never destroyed, since the process may end after the driver was unloaded.
Devices& devices() {
  static auto* all = new Devices;
  return *all;
}

/// Returns what is kept for the calling thread's device, with a cuDNN handle made at the first
/// call; null if the device cannot be found (see errors.h).
Device* this_device() {
  int number = 0, major = 0, minor = 0;
  if (!worked(cudaGetDevice(&number), "attention")) return nullptr;
  const auto [found, is_new] = devices().of.try_emplace(number);
  Device& device = found->second;
  if (!is_new) return &device;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, number);
  device.capability = major * 10 + minor;
  if (fe::detail::create_handle(&device.handle) != CUDNN_STATUS_SUCCESS) device.handle = nullptr;
  cudaGetLastError();
  return &device;
}

Key key_of(AttentionShape s, Direction direction) {
  return {direction, s.batch, s.seq, s.heads, s.head_dim};
}

/// Returns a graph with its plan, made at the first request; null where cuDNN can make none.
Graph* graph_of(Device& device, AttentionShape s, Direction direction) {
  if (device.handle == nullptr || !cudnn_takes(cudnn_version(), s)) return nullptr;
  const auto [found, is_new] = device.graphs.try_emplace(key_of(s, direction));
  if (is_new) {
    try {
      const auto graph = attention_graph(s, direction, device.capability);
      find_engines(*graph, device.handle);
      take(graph->build_plans());
      found->second = graph;
    } catch (const std::runtime_error&) {
      cudaGetLastError();  // clears errors that the library's attempts left in the runtime
    }
  }
  return found->second.get();
}

/// In the backward, cudnn-frontend keeps a float per row (the sum of dctx * ctx) at the begin of
/// the work and cuDNN's own work right after it. Returns the bytes of `work` that are left out
/// before both, so that the latter is aligned.
int64_t left_out(AttentionShape s, Direction direction) {
  constexpr int64_t kAligned = 256;
  const int64_t rows = s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float));
  return direction == Direction::kForward ? 0 : (kAligned - rows % kAligned) % kAligned;
}

/// Runs the plan that was made when the bytes of work were requested, since no plan can be made
/// while the stream is being recorded. Returns false if there is no plan or a pointer is not
/// aligned.
bool run(AttentionShape s, Direction direction, Pointers data, void* work, Stream stream) {
  constexpr uintptr_t kVector = 16;
  for (const auto& [id, pointer] : data)
    if (reinterpret_cast<uintptr_t>(pointer) % kVector != 0) return false;
  if (cudnn_version() == 0) return false;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device();
  if (device == nullptr) return true;
  const auto found = device->graphs.find(key_of(s, direction));
  if (found == device->graphs.end() || found->second == nullptr) return false;
  try {
    fe::detail::set_stream(device->handle, static_cast<cudaStream_t>(stream));
    take(found->second->execute(device->handle, data,
                                static_cast<char*>(work) + left_out(s, direction)));
  } catch (const std::runtime_error& error) {
    keep_error(std::string("cuda: attention: ") + error.what());
  }
  return true;
}

template <class T>
void* at(const T* first) {
  return const_cast<std::remove_const_t<T>*>(first);
}

}  // namespace

size_t cudnn_version() {
  static const size_t version = [] {
    // The major version of the headers; the interface does not change within it.
    const std::string name = "libcudnn.so." + std::to_string(CUDNN_MAJOR);
    fe::cudnn_dlhandle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    return fe::cudnn_dlhandle == nullptr ? 0 : fe::detail::get_backend_version();
  }();
  return version;
}

bool cudnn_takes(size_t version, AttentionShape s) {
  // cuDNN's release notes list faults in 16-bit attention before 9.10.2.
  constexpr size_t kOldest = 91002;
  // Up to cuDNN 9.15.0, the gradient is wrong for tiles of keys that the sequence does not fill.
  constexpr size_t kOnlyWholeTiles = 91500;
  constexpr int64_t kTile = 128, kLargestHead = 128, kWholeVectors = 8;
  if (version < kOldest || (version <= kOnlyWholeTiles && s.seq % kTile != 0)) return false;
  // See left_out().
  constexpr int64_t kRowsInVector = 4;
  if (s.batch * s.heads * s.seq % kRowsInVector != 0) return false;
  // In cuDNN 9.28 the gradient for a sequence of one row crashes the process.
  return is_plain(s) && s.seq > 1 && s.head_dim <= kLargestHead && s.head_dim % kWholeVectors == 0;
}

bool cudnn_offers(AttentionShape shape, Direction direction, const std::string& properties,
                  int32_t capability) {
  try {
    const auto device = std::make_shared<fe::DeviceProperties>();
    take(device->deserialize({properties.begin(), properties.end()}));
    const auto graph = attention_graph(shape, direction, capability);
    graph->set_device_properties(device);
    find_engines(*graph, nullptr);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

std::string attention_library_version() {
  return cudnn_version() == 0 ? "no cuDNN" : "cuDNN " + fe::detail::get_backend_version_string();
}

bool library_has_attention(AttentionShape s) {
  if (cudnn_version() == 0) return false;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device();
  return device != nullptr && graph_of(*device, s, Direction::kForward) != nullptr &&
         graph_of(*device, s, Direction::kBackward) != nullptr;
}

int64_t library_attention_work_bytes(AttentionShape s) {
  if (cudnn_version() == 0) return 0;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device();
  int64_t most = 0;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    int64_t bytes = 0;
    const Graph* const graph = device == nullptr ? nullptr : graph_of(*device, s, direction);
    if (graph != nullptr && graph->get_workspace_size(bytes).is_good())
      most = std::max(most, left_out(s, direction) + bytes);
  }
  return most;
}

bool library_attention(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape s, void* work,
                       Stream stream) {
  const int64_t hidden = s.heads * s.head_dim;
  return run(s, Direction::kForward,
             {{kQuery, at(qkv)},
              {kKey, at(qkv + hidden)},
              {kValue, at(qkv + 2 * hidden)},
              {kContext, ctx},
              {kLse, lse}},
             work, stream);
}

bool library_attention_dx(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                          const float* lse, AttentionShape s, void* work, Stream stream) {
  const int64_t hidden = s.heads * s.head_dim;
  return run(s, Direction::kBackward,
             {{kQuery, at(qkv)},
              {kKey, at(qkv + hidden)},
              {kValue, at(qkv + 2 * hidden)},
              {kContext, at(ctx)},
              {kLse, at(lse)},
              {kDcontext, at(dctx)},
              {kDquery, dqkv},
              {kDkey, dqkv + hidden},
              {kDvalue, dqkv + 2 * hidden}},
             work, stream);
}

}  // namespace moe::kernels::cuda
