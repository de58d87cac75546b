// SGD with momentum and AdamW: one pass over weights, states and gradients.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// The factors of one step, computed in double and rounded once.
struct AdamwFactors {
  float beta1, rest1, beta2, rest2, eps, keep, rate, root;
};

__device__ AdamwFactors factors_of(const AdamwRates& a, int64_t t) {
  const auto power = static_cast<double>(t);
  return {static_cast<float>(a.beta1),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(a.eps),
          static_cast<float>(1 - a.lr * a.weight_decay),
          static_cast<float>(a.lr / (1 - pow(a.beta1, power))),
          static_cast<float>(1 / sqrt(1 - pow(a.beta2, power)))};
}

template <int N>
__global__ void sgd_kernel(float* w, float* v, const float* g, float lr, float momentum,
                           int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    auto weight = load<N>(w + i), velocity = load<N>(v + i);
    const auto grad = load<N>(g + i);
    for (int j = 0; j < N; ++j) {
      velocity.at[j] = fmaf(momentum, velocity.at[j], grad.at[j]);
      weight.at[j] = fmaf(-lr, velocity.at[j], weight.at[j]);
    }
    store(v + i, velocity);
    store(w + i, weight);
  }
}

/// Powers in double are slow, so one thread per block computes the factors, while the others' first
/// numbers arrive.
template <int N>
__global__ void adamw_kernel(float* w, float* m, float* v, const float* g, AdamwRates rates,
                             const int64_t* step, int64_t n) {
  __shared__ AdamwFactors shared;
  if (threadIdx.x == 0) shared = factors_of(rates, *step + 1);
  bool first = true;
  AdamwFactors f;
  for (int64_t i = thread_number() * N; i < n || first; i += num_threads() * N) {
    Numbers<N> weight{}, mean{}, square{}, grad{};
    if (i < n) {
      weight = load<N>(w + i);
      mean = load<N>(m + i);
      square = load<N>(v + i);
      grad = load<N>(g + i);
    }
    if (first) {
      __syncthreads();
      f = shared;
      first = false;
    }
    if (i >= n) break;
    for (int j = 0; j < N; ++j) {
      const float g_j = grad.at[j];
      // Fused by name: which product is rounded alone is not left to the compiler.
      mean.at[j] = fmaf(f.beta1, mean.at[j], f.rest1 * g_j);
      square.at[j] = fmaf(f.beta2, square.at[j], f.rest2 * g_j * g_j);
      const float size = fmaf(f.root, sqrtf(square.at[j]), f.eps);
      weight.at[j] = fmaf(f.keep, weight.at[j], -(f.rate * mean.at[j] / size));
    }
    store(m + i, mean);
    store(v + i, square);
    store(w + i, weight);
  }
}

/// Block j makes sum j.
__global__ void square_sums_kernel(float* sums, const float* x, const float* acc, float factor,
                                   int64_t n) {
  __shared__ float shared[kWarps];
  float sum = 0;
  for (int64_t run = blockIdx.x * kSquareRun; run < n; run += kSquareSums * kSquareRun) {
    for (int64_t i = run + threadIdx.x; i < run + kSquareRun && i < n; i += kThreads) {
      sum = fmaf(x[i], x[i], sum);
    }
  }
  sum = block_sum_once(sum, shared);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = fmaf(factor, sum, acc != nullptr ? acc[blockIdx.x] : 0.0F);
  }
}

template <int N>
__global__ void clip_kernel(float* y, const float* x, const float* square_sums, float limit,
                            int64_t n) {
  __shared__ float shared[kWarps];
  float sum = 0;
  for (int64_t j = threadIdx.x; j < kSquareSums; j += kThreads) sum += square_sums[j];
  sum = block_sum_once(sum, shared);
  const float factor = fminf(1.0F, limit / (sqrtf(sum) + 1e-6F));
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    auto v = load<N>(x + i);
    for (int k = 0; k < N; ++k) v.at[k] *= factor;
    store(y + i, v);
  }
}

}  // namespace

void square_sums(float* sums, const float* x, const float* acc, float factor, int64_t n,
                 Stream stream) {
  launch(square_sums_kernel, static_cast<int>(kSquareSums), kThreads, stream, sums, x, acc, factor,
         n);
}

void clip(float* y, const float* x, const float* square_sums, float limit, int64_t n,
          Stream stream) {
  in_packs<float>(
      [&](auto N) {
        launch(clip_kernel<N>, stride_blocks(n / N), kThreads, stream, y, x, square_sums, limit, n);
      },
      n, y, x);
}

void sgd(float* w, float* v, const float* g, float lr, float momentum, int64_t n, Stream stream) {
  in_packs<float>(
      [&](auto N) {
        launch(sgd_kernel<N>, stride_blocks(n / N), kThreads, stream, w, v, g, lr, momentum, n);
      },
      n, w, v, g);
}

void adamw(float* w, float* m, float* v, const float* g, const AdamwRates& rates,
           const int64_t* step, int64_t n, Stream stream) {
  in_packs<float>(
      [&](auto N) {
        launch(adamw_kernel<N>, stride_blocks(n / N), kThreads, stream, w, m, v, g, rates, step, n);
      },
      n, w, m, v, g);
}

}  // namespace moe::kernels::cuda
