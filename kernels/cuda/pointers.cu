// Writes pointers that are passed as a kernel argument, as many per launch as an argument can hold.
#include "kernels/cuda/pointers.h"

#include <algorithm>

#include "kernels/cuda/device.h"

namespace moe::kernels::cuda {
namespace {

/// 2 KB; kernel arguments may have 4 KB on any device.
struct Pointers {
  const void* at[kThreads];
};

__global__ void store_kernel(const void** to, Pointers pointers, int64_t n) {
  const int64_t i = thread_number();
  if (i < n) to[i] = pointers.at[i];
}

}  // namespace

void store_pointers(const void** to, const std::vector<const void*>& pointers, Stream stream) {
  for (size_t first = 0; first < pointers.size(); first += kThreads) {
    const size_t n = std::min<size_t>(kThreads, pointers.size() - first);
    Pointers some{};
    std::copy_n(pointers.begin() + static_cast<std::ptrdiff_t>(first), n, some.at);
    launch(store_kernel, 1, kThreads, stream, to + first, some, static_cast<int64_t>(n));
  }
}

}  // namespace moe::kernels::cuda
