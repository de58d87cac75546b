// Where the first NaN or infinity of a tensor is.
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

using Index = unsigned long long;
constexpr Index kNone = ~Index{0};

/// The first of the numbers in v that is not finite, or how many there are.
__device__ int first_in(float v) {
  return isfinite(v) ? 1 : 0;
}
__device__ int first_in(float4 v) {
  if (!isfinite(v.x)) return 0;
  if (!isfinite(v.y)) return 1;
  if (!isfinite(v.z)) return 2;
  return isfinite(v.w) ? 4 : 3;
}

/// The one atomic of this folder. The least of some numbers is the same in whatever order they
/// come, so the result is the same bits every time.
template <class V>
__global__ void note_nonfinite_kernel(Index* first, const V* x, int64_t n, int64_t before) {
  constexpr int kWidth = sizeof(V) / sizeof(float);
  Index mine = kNone;
  for (int64_t i = thread_number(); i < n && mine == kNone; i += num_threads()) {
    const int at = first_in(x[i]);
    if (at < kWidth) mine = static_cast<Index>(before + i * kWidth + at);
  }
  if (mine != kNone) atomicMin(first, mine);
}

}  // namespace

void note_nonfinite(int64_t* first, const float* x, int64_t n, Stream stream) {
  auto* least = reinterpret_cast<Index*>(first);
  const int64_t fours = vectorable(0, x) ? n / 4 : 0, rest = n - 4 * fours;
  launch(note_nonfinite_kernel<float4>, stride_blocks(fours), kThreads, stream, least,
         reinterpret_cast<const float4*>(x), fours, int64_t{0});
  launch(note_nonfinite_kernel<float>, stride_blocks(rest), kThreads, stream, least, x + 4 * fours,
         rest, 4 * fours);
}

}  // namespace moe::kernels::cuda
