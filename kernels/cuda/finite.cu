// Finds the first NaN or infinity of a tensor.
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"

namespace moe::kernels::cuda {
namespace {

using Index = unsigned long long;
constexpr Index kNone = ~Index{0};

/// *first = the minimum of *first and the first index of a NaN or infinity in x[begin .. end - 1].
/// The only kernel that combines numbers by an atomic: a minimum is the same in any order, so the
/// result has the same bits every time.
template <class T, int N>
__global__ void note_nonfinite_kernel(Index* first, const T* x, int64_t begin, int64_t end) {
  Index mine = kNone;
  for (int64_t i = begin + thread_number() * N; i < end && mine == kNone; i += num_threads() * N) {
    const auto v = load<N>(x + i);
    for (int j = N - 1; j >= 0; --j)
      if (!isfinite(v.at[j])) mine = static_cast<Index>(i + j);
  }
  if (mine != kNone) atomicMin(first, mine);
}

template <class T>
void note(int64_t* first, const T* x, int64_t n, Stream stream) {
  constexpr int N = kPack<T>;
  auto* least = reinterpret_cast<Index*>(first);
  const int64_t packs = vectorable(0, x) ? n / N : 0, rest = n - N * packs;
  launch(note_nonfinite_kernel<T, N>, stride_blocks(packs), kThreads, stream, least, x, int64_t{0},
         N * packs);
  launch(note_nonfinite_kernel<T, 1>, stride_blocks(rest), kThreads, stream, least, x, N * packs,
         n);
}

}  // namespace

void note_nonfinite(int64_t* first, EitherIn x, int64_t n, Stream stream) {
  if (x.wide)
    note(first, static_cast<const float*>(x.data), n, stream);
  else
    note(first, static_cast<const Bf16*>(x.data), n, stream);
}

}  // namespace moe::kernels::cuda
