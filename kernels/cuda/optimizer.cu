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

__global__ void sgd_kernel(float* w, float* v, const float* g, float lr, float momentum,
                           int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    const float velocity = momentum * v[i] + g[i];
    v[i] = velocity;
    w[i] -= lr * velocity;
  }
}

/// Powers in double are slow, so one thread per block computes the factors.
__global__ void adamw_kernel(float* w, float* m, float* v, const float* g, AdamwRates rates,
                             const int64_t* step, int64_t n) {
  __shared__ AdamwFactors shared;
  if (threadIdx.x == 0) shared = factors_of(rates, *step + 1);
  __syncthreads();
  const AdamwFactors f = shared;
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    const float mean = f.beta1 * m[i] + f.rest1 * g[i];
    const float square = f.beta2 * v[i] + f.rest2 * g[i] * g[i];
    m[i] = mean;
    v[i] = square;
    w[i] = f.keep * w[i] - f.rate * mean / (f.root * sqrtf(square) + f.eps);
  }
}

}  // namespace

void sgd(float* w, float* v, const float* g, float lr, float momentum, int64_t n, Stream stream) {
  launch(sgd_kernel, stride_blocks(n), kThreads, stream, w, v, g, lr, momentum, n);
}

void adamw(float* w, float* m, float* v, const float* g, const AdamwRates& rates,
           const int64_t* step, int64_t n, Stream stream) {
  launch(adamw_kernel, stride_blocks(n), kThreads, stream, w, m, v, g, rates, step, n);
}

}  // namespace moe::kernels::cuda
