// Cuts the columns of every head in two and joins them again. One warp per row.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class T, int N>
__global__ void split_heads_kernel(T* first, T* second, const T* x, HeadColumns columns,
                                   int64_t rows) {
  const int64_t r = warp_number();
  if (r >= rows) return;
  const int64_t width = columns.first + columns.second, all = columns.heads * columns.first;
  const T* const from = x + r * columns.heads * width;
  for (int64_t c = lane() * N; c < all; c += kWarp * N)
    store(first + r * all + c, load<N>(from + c / columns.first * width + c % columns.first));
  // Shared columns are of one head, in which the sums of all heads are.
  const int64_t kept = columns.shared ? 1 : columns.heads;
  const int64_t summed = columns.shared ? columns.heads : 1;
  for (int64_t c = lane() * N; c < kept * columns.second; c += kWarp * N) {
    const T* const at = from + c / columns.second * width + columns.first + c % columns.second;
    auto sum = load<N>(at);
    for (int64_t h = 1; h < summed; ++h) {
      const auto v = load<N>(at + h * width);
      for (int j = 0; j < N; ++j) sum.at[j] += v.at[j];
    }
    store(second + r * kept * columns.second + c, sum);
  }
}

template <class T, int N>
__global__ void join_heads_kernel(T* x, const T* first, const T* second, HeadColumns columns,
                                  int64_t rows) {
  const int64_t r = warp_number();
  if (r >= rows) return;
  const int64_t width = columns.first + columns.second, all = columns.heads * width;
  const int64_t kept = columns.shared ? 1 : columns.heads;
  for (int64_t c = lane() * N; c < all; c += kWarp * N) {
    const int64_t head = c / width, at = c % width;
    const T* const from =
        at < columns.first
            ? first + (r * columns.heads + head) * columns.first + at
            : second + (r * kept + head % kept) * columns.second + at - columns.first;
    store(x + r * all + c, load<N>(from));
  }
}

template <class T>
void split_heads(T* first, T* second, const T* x, HeadColumns columns, int64_t rows,
                 Stream stream) {
  const auto run = [&](auto at_once) {
    launch(split_heads_kernel<T, at_once>, blocks_of(rows, kWarps), kThreads, stream, first, second,
           x, columns, rows);
  };
  in_packs<T>(run, columns.first | columns.second, first, second, x);  // packs divide both
}

template <class T>
void join_heads(T* x, const T* first, const T* second, HeadColumns columns, int64_t rows,
                Stream stream) {
  const auto run = [&](auto at_once) {
    launch(join_heads_kernel<T, at_once>, blocks_of(rows, kWarps), kThreads, stream, x, first,
           second, columns, rows);
  };
  in_packs<T>(run, columns.first | columns.second, first, second, x);
}

}  // namespace

template <class T>
void head_kernels(KernelTable<T>& table) {
  table.split_heads = split_heads<T>;
  table.join_heads = join_heads<T>;
}
template void head_kernels(KernelTable<float>&);
template void head_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
