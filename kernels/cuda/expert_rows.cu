// Copies rows to the experts' slots and back. All kernels gather, also those of gradients: each
// element is written by one thread, which adds in the order of the choices. One warp per row.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// V is one number or 16 bytes, and hidden is counted in V: rows are copied without arithmetic.
template <class V>
__global__ void dispatch_kernel(V* out, const V* x, const int32_t* slot_choice, int64_t slots,
                                int64_t k, int64_t hidden) {
  const int64_t s = warp_number();
  if (s >= slots) return;
  const int32_t choice = slot_choice[s];
  for (int64_t c = lane(); c < hidden; c += kWarp)
    out[s * hidden + c] = choice < 0 ? V{} : x[choice / k * hidden + c];
}

template <class T, int N>
__global__ void dispatch_dx_kernel(T* dx, const T* dout, const int32_t* choice_slot, const T* acc,
                                   int64_t tokens, int64_t k, int64_t hidden) {
  const int64_t t = warp_number();
  if (t >= tokens) return;
  for (int64_t c = lane() * N; c < hidden; c += kWarp * N) {
    auto sum = acc ? load<N>(acc + t * hidden + c) : Numbers<N>{};
    for (int64_t j = 0; j < k; ++j) {
      const int64_t slot = choice_slot[t * k + j];
      if (slot < 0) continue;
      const auto grad = load<N>(dout + slot * hidden + c);
      for (int i = 0; i < N; ++i) sum.at[i] += grad.at[i];
    }
    store(dx + t * hidden + c, sum);
  }
}

template <class T, int N>
__global__ void combine_kernel(T* y, const T* in, const float* weight, const int32_t* choice_slot,
                               const T* residual, int64_t tokens, int64_t k, int64_t hidden) {
  const int64_t t = warp_number();
  if (t >= tokens) return;
  for (int64_t c = lane() * N; c < hidden; c += kWarp * N) {
    auto sum = residual ? load<N>(residual + t * hidden + c) : Numbers<N>{};
    for (int64_t j = 0; j < k; ++j) {
      const int64_t slot = choice_slot[t * k + j];
      if (slot < 0) continue;
      const float w = weight[t * k + j];
      const auto value = load<N>(in + slot * hidden + c);
      for (int i = 0; i < N; ++i) sum.at[i] += w * value.at[i];
    }
    store(y + t * hidden + c, sum);
  }
}

template <class T, int N>
__global__ void combine_dx_kernel(T* din, const T* dy, const float* weight,
                                  const int32_t* slot_choice, int64_t slots, int64_t k,
                                  int64_t hidden) {
  const int64_t s = warp_number();
  if (s >= slots) return;
  const int32_t choice = slot_choice[s];
  const float w = choice < 0 ? 0 : weight[choice];
  for (int64_t c = lane() * N; c < hidden; c += kWarp * N) {
    Numbers<N> grad{};
    if (choice >= 0) {
      grad = load<N>(dy + choice / k * hidden + c);
      for (int i = 0; i < N; ++i) grad.at[i] = w * grad.at[i];
    }
    store(din + s * hidden + c, grad);
  }
}

template <class T>
__global__ void combine_dweight_kernel(float* dweight, const T* dy, const T* in,
                                       const int32_t* choice_slot, int64_t choices, int64_t k,
                                       int64_t hidden) {
  constexpr int N = kSummed<T>;
  const int64_t choice = warp_number();
  if (choice >= choices) return;  // the whole warp returns
  const int64_t slot = choice_slot[choice];
  float sum = 0;
  for (int64_t c = lane() * N; c < hidden && slot >= 0; c += kWarp * N) {
    const auto a = load_columns<N>(dy + choice / k * hidden, c, hidden, 0);
    const auto b = load_columns<N>(in + slot * hidden, c, hidden, 0);
    for (int i = 0; i < N; ++i) sum += a.at[i] * b.at[i];
  }
  sum = warp_sum(sum);
  if (lane() == 0) dweight[choice] = sum;
}

__global__ void gather_kernel(float* to, const float* from, const int32_t* at, int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) to[i] = at[i] < 0 ? 0 : from[at[i]];
}

template <class T>
void dispatch(T* out, const T* x, const int32_t* slot_choice, int64_t slots, int64_t k,
              int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    using V = std::conditional_t<at_once == 1, T, uint4>;
    launch(dispatch_kernel<V>, blocks_of(slots, kWarps), kThreads, stream,
           reinterpret_cast<V*>(out), reinterpret_cast<const V*>(x), slot_choice, slots, k,
           hidden / at_once);
  };
  in_packs<T>(run, hidden, out, x);
}

template <class T>
void dispatch_dx(T* dx, const T* dout, const int32_t* choice_slot, const T* acc, int64_t tokens,
                 int64_t k, int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    launch(dispatch_dx_kernel<T, at_once>, blocks_of(tokens, kWarps), kThreads, stream, dx, dout,
           choice_slot, acc, tokens, k, hidden);
  };
  in_packs<T>(run, hidden, dx, dout, acc);
}

template <class T>
void combine(T* y, const T* in, const float* weight, const int32_t* choice_slot, const T* residual,
             int64_t tokens, int64_t k, int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    launch(combine_kernel<T, at_once>, blocks_of(tokens, kWarps), kThreads, stream, y, in, weight,
           choice_slot, residual, tokens, k, hidden);
  };
  in_packs<T>(run, hidden, y, in, residual);
}

template <class T>
void combine_dx(T* din, const T* dy, const float* weight, const int32_t* slot_choice, int64_t slots,
                int64_t k, int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    launch(combine_dx_kernel<T, at_once>, blocks_of(slots, kWarps), kThreads, stream, din, dy,
           weight, slot_choice, slots, k, hidden);
  };
  in_packs<T>(run, hidden, din, dy);
}

template <class T>
void combine_dweight(float* dweight, const T* dy, const T* in, const int32_t* choice_slot,
                     int64_t tokens, int64_t k, int64_t hidden, Stream stream) {
  const int64_t choices = tokens * k;
  launch(combine_dweight_kernel<T>, blocks_of(choices, kWarps), kThreads, stream, dweight, dy, in,
         choice_slot, choices, k, hidden);
}

void gather(float* to, const float* from, const int32_t* at, int64_t n, Stream stream) {
  launch(gather_kernel, stride_blocks(n), kThreads, stream, to, from, at, n);
}

}  // namespace

template <class T>
void expert_row_kernels(KernelTable<T>& table) {
  table.dispatch = dispatch<T>;
  table.dispatch_dx = dispatch_dx<T>;
  table.combine = combine<T>;
  table.combine_dx = combine_dx<T>;
  table.combine_dweight = combine_dweight<T>;
  table.gather = gather;
}
template void expert_row_kernels(KernelTable<float>&);
template void expert_row_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
