// Rotary embedding: one block per token, whose threads take a pack of pairs, or of columns that
// stay, at a time.
#include <numeric>

#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

template <class T, int N, bool kInterleaved>
__global__ void rope_kernel(T* y, const T* x, const float* angles, RopeShape s) {
  // Numbers within a token fit into 32 bits, in which divisions are fast.
  const int pairs = static_cast<int>(s.pairs), head_dim = static_cast<int>(s.head_dim);
  const int first = static_cast<int>(s.first), staying = head_dim - 2 * pairs;
  const int units = (pairs + staying) / N, all = static_cast<int>(s.heads) * units;
  const int64_t token = blockIdx.x, row = token * s.heads * s.head_dim;
  const float* const cosines = angles + token % s.seq * 2 * pairs;
  const float* const sines = cosines + pairs;
  const float turn = s.inverse ? -1.0f : 1.0f;
  for (int unit = static_cast<int>(threadIdx.x); unit < all; unit += static_cast<int>(blockDim.x)) {
    const int head = unit / units, j = (unit - head * units) * N;
    const int64_t from = row + static_cast<int64_t>(head) * head_dim;
    if (j >= pairs) {
      const int c = j - pairs < first ? j - pairs : j + pairs;
      store(y + from + c, load<N>(x + from + c));
      continue;
    }
    const int64_t at = from + first + (kInterleaved ? 2 * j : j);
    const int64_t next = at + (kInterleaved ? N : pairs);
    const auto u = load<N>(x + at), v = load<N>(x + next);
    const auto c = load<N>(cosines + j), si = load<N>(sines + j);
    Numbers<N> a, b;  // the first and the second columns of the pairs
    for (int i = 0; i < N; ++i) {
      const float p = !kInterleaved ? u.at[i] : 2 * i < N ? u.at[2 * i % N] : v.at[2 * i % N];
      const float q = !kInterleaved   ? v.at[i]
                      : 2 * i + 1 < N ? u.at[(2 * i + 1) % N]
                                      : v.at[(2 * i + 1) % N];
      a.at[i] = p * c.at[i] - q * (turn * si.at[i]);
      b.at[i] = q * c.at[i] + p * (turn * si.at[i]);
    }
    if constexpr (kInterleaved) {
      const auto column = [&](int i) { return i % 2 == 0 ? a.at[i / 2] : b.at[i / 2]; };
      store(y + at, numbers<N>([&](int i) { return column(i); }));
      store(y + next, numbers<N>([&](int i) { return column(N + i); }));
    } else {
      store(y + at, a);
      store(y + next, b);
    }
  }
}

__global__ void rope_angles_kernel(float* angles, RopeFrequencies f, int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    const int64_t position = i / f.pairs, j = i % f.pairs;
    // Rounded to float as in transformers, then without error: cosf and sinf of large numbers would
    // need local memory.
    const float angle = static_cast<float>(position) * f.at[j];
    const double half_turns = static_cast<double>(angle) * 0.31830988618379067154;
    float* const row = angles + position * 2 * f.pairs;
    row[j] = static_cast<float>(cospi(half_turns)) * f.scale;
    row[f.pairs + j] = static_cast<float>(sinpi(half_turns)) * f.scale;
  }
}

template <class T>
void rope(T* y, const T* x, const float* angles, const RopeShape& s, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    launch(s.interleaved ? rope_kernel<T, N, true> : rope_kernel<T, N, false>, s.tokens, kThreads,
           stream, y, x, angles, s);
  };
  in_packs<T>(run, std::gcd(std::gcd(s.pairs, s.head_dim), s.first), y, x, angles);
}

}  // namespace

void rope_angles(float* angles, const RopeFrequencies& f, int64_t seq, Stream stream) {
  const int64_t n = seq * f.pairs;
  launch(rope_angles_kernel, stride_blocks(n), kThreads, stream, angles, f, n);
}

template <class T>
void rope_kernels(KernelTable<T>& table) {
  table.rope = rope<T>;
}
template void rope_kernels(KernelTable<float>&);
template void rope_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
