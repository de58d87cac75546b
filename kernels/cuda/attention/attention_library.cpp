#include "kernels/cuda/attention/attention_library.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/check.h"

namespace moe::kernels::cuda {
namespace {

/// A direction (forward or backward) and the sizes of a shape.
using Key = std::tuple<Direction, int64_t, int64_t, int64_t, int64_t>;

struct Device {
  cudnnHandle_t handle = nullptr;  // null if the library does not work on this device
  std::map<Key, std::optional<CudnnPlan>> plans;
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
Device* this_device(const CudnnCalls& calls) {
  int number = 0;
  if (!worked(cudaGetDevice(&number), "attention")) return nullptr;
  const auto [found, is_new] = devices().of.try_emplace(number);
  Device& device = found->second;
  if (is_new && calls.create(&device.handle) != CUDNN_STATUS_SUCCESS) {
    device.handle = nullptr;
    cudaGetLastError();
  }
  return &device;
}

Key key_of(AttentionShape s, Direction direction) {
  return {direction, s.batch, s.seq, s.heads, s.head_dim};
}

/// Returns cuDNN's plan for a shape, made at the first request; null where cuDNN can make none.
const CudnnPlan* plan_of(const CudnnCalls& calls, Device& device, AttentionShape s,
                         Direction direction) {
  if (device.handle == nullptr || !cudnn_takes(calls.version(), s)) return nullptr;
  const auto [found, is_new] = device.plans.try_emplace(key_of(s, direction));
  if (is_new) {
    try {
      found->second.emplace(calls, attention_graph(calls, s, direction), device.handle);
    } catch (const CudnnRefusal&) {
      cudaGetLastError();  // clears errors that the library's attempts left in the runtime
    }
  }
  return found->second ? &*found->second : nullptr;
}

/// `work` contains kDelta (cudnn_attention.h) of all rows, then cuDNN's own workspace.
constexpr int64_t kAligned = 256;
int64_t delta_bytes(AttentionShape s) {
  const int64_t bytes = s.batch * s.heads * s.seq * static_cast<int64_t>(sizeof(float));
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

bool aligned(const std::vector<std::pair<int64_t, void*>>& data) {
  constexpr uintptr_t kVector = 16;
  return std::all_of(data.begin(), data.end(), [](const auto& one) {
    return reinterpret_cast<uintptr_t>(one.second) % kVector == 0;
  });
}

/// Runs the plan that was made when the bytes of work were requested, since no plan can be made
/// while the stream is being recorded. `data`: pointers of all tensors except kScale, kHidden and
/// kOne. Returns false if there is no plan or a pointer is not aligned.
bool run(AttentionShape s, Direction direction, std::vector<std::pair<int64_t, void*>> data,
         void* workspace, Stream stream) {
  const CudnnCalls* const calls = cudnn_calls();
  if (calls == nullptr || !aligned(data)) return false;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device(*calls);
  if (device == nullptr) return true;
  const auto plan = device->plans.find(key_of(s, direction));
  if (plan == device->plans.end() || !plan->second) return false;
  auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(s.head_dim)));
  float hidden = std::numeric_limits<float>::lowest(), one = 1;
  data.insert(data.end(), {{kScale, &scale}, {kHidden, &hidden}});
  if (direction == Direction::kBackward) data.emplace_back(kOne, &one);
  try {
    plan->second->run(device->handle, static_cast<cudaStream_t>(stream), data, workspace);
  } catch (const CudnnRefusal& refusal) {
    keep_error("cuda: attention: " + refusal.what);
  }
  return true;
}

template <class T>
void* at(const T* first, int64_t column = 0) {
  return const_cast<T*>(first) + column;
}

}  // namespace

std::string attention_library_version() {
  const CudnnCalls* const calls = cudnn_calls();
  if (calls == nullptr) return "no cuDNN";
  const size_t v = calls->version();
  return "cuDNN " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

bool library_has_attention(AttentionShape s) {
  const CudnnCalls* const calls = cudnn_calls();
  if (calls == nullptr) return false;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device(*calls);
  return device != nullptr && plan_of(*calls, *device, s, Direction::kForward) != nullptr &&
         plan_of(*calls, *device, s, Direction::kBackward) != nullptr;
}

int64_t library_attention_work_bytes(AttentionShape s) {
  const CudnnCalls* const calls = cudnn_calls();
  if (calls == nullptr) return 0;
  const std::lock_guard lock(devices().mutex);
  Device* const device = this_device(*calls);
  int64_t bytes = 0;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const CudnnPlan* const plan =
        device == nullptr ? nullptr : plan_of(*calls, *device, s, direction);
    if (plan != nullptr) bytes = std::max(bytes, delta_bytes(s) + plan->workspace_bytes());
  }
  return bytes;
}

bool library_attention(Bf16* ctx, float* lse, const Bf16* qkv, AttentionShape s, void* work,
                       Stream stream) {
  const int64_t hidden = s.heads * s.head_dim;
  return run(s, Direction::kForward,
             {{kQuery, at(qkv)},
              {kKey, at(qkv, hidden)},
              {kValue, at(qkv, 2 * hidden)},
              {kContext, ctx},
              {kLse, lse}},
             static_cast<char*>(work) + delta_bytes(s), stream);
}

bool library_attention_dx(Bf16* dqkv, const Bf16* dctx, const Bf16* ctx, const Bf16* qkv,
                          const float* lse, AttentionShape s, void* work, Stream stream) {
  const int64_t hidden = s.heads * s.head_dim;
  return run(s, Direction::kBackward,
             {{kQuery, at(qkv)},
              {kKey, at(qkv, hidden)},
              {kValue, at(qkv, 2 * hidden)},
              {kContext, at(ctx)},
              {kLse, at(lse)},
              {kDcontext, at(dctx)},
              {kDelta, work},
              {kDquery, dqkv},
              {kDkey, dqkv + hidden},
              {kDvalue, dqkv + 2 * hidden}},
             static_cast<char*>(work) + delta_bytes(s), stream);
}

}  // namespace moe::kernels::cuda
