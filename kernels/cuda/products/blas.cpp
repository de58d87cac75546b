#include "kernels/cuda/products/blas.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<std::pair<int, Stream>, StreamResources> of;
};

/// Never destroyed, since the process may end after the driver was unloaded.
Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

void end(const Handles& handles) {
  for (const cublasHandle_t handle : {handles.exact, handles.tensor})
    if (handle != nullptr) accepted(cublasDestroy(handle), "end_stream: cublasDestroy");
}

/// Frees the blocks; cudaFree waits for work that still uses them.
void end(const Workspace& workspace) {
  for (void* const block : workspace.blocks)
    worked(cudaFree(block), "end_stream: free memory of gemm");
}

void end(const StreamResources& resources) {
  for (const SideStream& side : resources.sides) {
    end(side.handles);
    end(side.workspace);
    worked(cudaEventDestroy(side.done), "end_stream: end a side stream");
    worked(cudaStreamDestroy(side.stream), "end_stream: end a side stream");
  }
  if (resources.fork != nullptr)
    worked(cudaEventDestroy(resources.fork), "end_stream: end the fork event");
  end(resources.handles);
  end(resources.operands);
  end(resources.workspace);
}

/// Creates a side stream with the priority of `stream`; null members on failure (see errors.h).
SideStream make_side(Stream stream) {
  SideStream side;
  int priority = 0;
  const bool all =
      worked(cudaStreamGetPriority(static_cast<cudaStream_t>(stream), &priority),
             "gemm: make a side stream") &&
      worked(cudaEventCreateWithFlags(&side.done, cudaEventDisableTiming),
             "gemm: make a side stream") &&
      worked(cudaStreamCreateWithPriority(&side.stream, cudaStreamNonBlocking, priority),
             "gemm: make a side stream");
  if (!all && side.done != nullptr) worked(cudaEventDestroy(side.done), "gemm: make a side stream");
  return all ? side : SideStream();
}

}  // namespace

bool accepted(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  keep_error(std::string("cuda: ") + what + ": " + cublasGetStatusString(status));
  return false;
}

StreamResources* resources_of(Stream stream) {
  int device = 0;
  if (!worked(cudaGetDevice(&device), "gemm")) return nullptr;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  return &all.of[{device, stream}];
}

cublasHandle_t handle_of(Handles& handles, bool exact, Stream stream) {
  cublasHandle_t& handle = exact ? handles.exact : handles.tensor;
  if (handle != nullptr) return handle;
  // Parts of a sum that is split among blocks are float32 (see lt.cpp).
  constexpr auto kTensorMath = static_cast<cublasMath_t>(
      CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  if (!accepted(cublasCreate(&handle), "gemm: cublasCreate")) return nullptr;
  if (accepted(cublasSetStream(handle, static_cast<cudaStream_t>(stream)),
               "gemm: cublasSetStream") &&
      accepted(cublasSetMathMode(handle, exact ? CUBLAS_PEDANTIC_MATH : kTensorMath),
               "gemm: cublasSetMathMode"))
    return handle;
  cublasDestroy(std::exchange(handle, nullptr));
  return nullptr;
}

void* bytes_of(Workspace& workspace, int64_t bytes) {
  if (bytes > workspace.bytes) {
    const int64_t more = std::max(bytes, 2 * workspace.bytes);
    void* block = nullptr;
    const std::string what = "gemm: allocate " + std::to_string(more) + " bytes";
    if (!worked(cudaMalloc(&block, static_cast<size_t>(more)), what.c_str())) return nullptr;
    workspace.blocks.push_back(block);
    workspace.bytes = more;
  }
  return workspace.blocks.back();
}

void* work_area(Stream stream, int64_t bytes) {
  StreamResources* const resources = resources_of(stream);
  return resources ? bytes_of(resources->workspace, std::max(bytes, int64_t{1})) : nullptr;
}

bool have_sides(StreamResources& resources, Stream stream) {
  if (resources.fork == nullptr &&
      !worked(cudaEventCreateWithFlags(&resources.fork, cudaEventDisableTiming),
              "gemm: fork to side streams"))
    return false;
  while (resources.sides.size() < kSides) {
    const SideStream side = make_side(stream);
    if (side.stream == nullptr) return false;
    resources.sides.push_back(side);
  }
  return true;
}

void forget_gemm(Stream stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (auto at = all.of.begin(); at != all.of.end();) {
    if (at->first.second != stream) {
      ++at;
      continue;
    }
    end(at->second);
    at = all.of.erase(at);
  }
}

}  // namespace moe::kernels::cuda
