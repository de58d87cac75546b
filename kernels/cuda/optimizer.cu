// SGD with momentum and AdamW: one pass over weights, state and gradient.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

/// AdamwFactors rounded once, on the host.
struct FloatFactors {
  float beta1, rest1, beta2, rest2, eps, keep, rate, root;
};

__global__ void sgd_kernel(float* w, float* v, const float* g, float lr, float momentum,
                           int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    const float velocity = momentum * v[i] + g[i];
    v[i] = velocity;
    w[i] -= lr * velocity;
  }
}

__global__ void adamw_kernel(float* w, float* m, float* v, const float* g, FloatFactors f,
                             int64_t n) {
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

void adamw(float* w, float* m, float* v, const float* g, const AdamwFactors& f, int64_t n,
           Stream stream) {
  const FloatFactors factors = {static_cast<float>(f.beta1), static_cast<float>(1 - f.beta1),
                                static_cast<float>(f.beta2), static_cast<float>(1 - f.beta2),
                                static_cast<float>(f.eps),   static_cast<float>(f.keep),
                                static_cast<float>(f.rate),  static_cast<float>(f.root)};
  launch(adamw_kernel, stride_blocks(n), kThreads, stream, w, m, v, g, factors, n);
}

}  // namespace moe::kernels::cuda
