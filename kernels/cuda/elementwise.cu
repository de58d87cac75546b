// Elementwise ops: a thread strides over elements; one pass over each operand.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286535588f;
constexpr float kCubic = 0.044715f;
constexpr int kMaxSummands = 256;

struct Summands {  // passed by value: the list lies in host memory
  const float* in[kMaxSummands];
};

__device__ float at_or_zero(const float* p, int64_t i) {
  return p ? p[i] : 0.0f;
}

/// The column of a thread's element as the thread strides on, without a division each time.
class Column {
 public:
  __device__ explicit Column(int64_t cols)
      : cols_(cols), step_(num_threads() % cols), at_(thread_number() % cols) {}
  __device__ int64_t at() const { return at_; }
  __device__ void advance() {
    at_ += step_;
    if (at_ >= cols_) at_ -= cols_;
  }

 private:
  int64_t cols_, step_, at_;
};

__global__ void fill_bias_kernel(float* y, const float* bias, const float* residual, int64_t n,
                                 int64_t cols) {
  Column c(cols);
  for (int64_t i = thread_number(); i < n; i += num_threads(), c.advance())
    y[i] = at_or_zero(bias, c.at()) + at_or_zero(residual, i);
}

__global__ void gelu_kernel(float* y, const float* x, const float* bias, int64_t n, int64_t cols) {
  Column c(cols);
  for (int64_t i = thread_number(); i < n; i += num_threads(), c.advance()) {
    const float z = x[i] + at_or_zero(bias, c.at());
    y[i] = 0.5f * z * (1 + tanhf(kSqrt2OverPi * (z + kCubic * z * z * z)));
  }
}

__global__ void gelu_dx_kernel(float* dx, const float* dy, const float* x, const float* bias,
                               int64_t n, int64_t cols) {
  Column c(cols);
  for (int64_t i = thread_number(); i < n; i += num_threads(), c.advance()) {
    const float z = x[i] + at_or_zero(bias, c.at());
    const float t = tanhf(kSqrt2OverPi * (z + kCubic * z * z * z));
    const float du = kSqrt2OverPi * (1 + 3 * kCubic * z * z);
    dx[i] = dy[i] * (0.5f * (1 + t) + 0.5f * z * (1 - t * t) * du);
  }
}

template <class V>
__global__ void add_kernel(V* y, const V* a, const V* b, int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) y[i] = plus(a[i], b[i]);
}

__global__ void sum_n_kernel(float* y, Summands summands, int64_t count, int64_t n) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    float sum = summands.in[0][i];
    for (int64_t j = 1; j < count; ++j) sum += summands.in[j][i];
    y[i] = sum;
  }
}

}  // namespace

void fill_bias(float* y, const float* bias, const float* residual, int64_t rows, int64_t cols,
               Stream stream) {
  const int64_t n = rows * cols;
  launch(fill_bias_kernel, stride_blocks(n), kThreads, stream, y, bias, residual, n, cols);
}

void gelu(float* y, const float* x, const float* bias, int64_t rows, int64_t cols, Stream stream) {
  const int64_t n = rows * cols;
  launch(gelu_kernel, stride_blocks(n), kThreads, stream, y, x, bias, n, cols);
}

void gelu_dx(float* dx, const float* dy, const float* x, const float* bias, int64_t rows,
             int64_t cols, Stream stream) {
  const int64_t n = rows * cols;
  launch(gelu_dx_kernel, stride_blocks(n), kThreads, stream, dx, dy, x, bias, n, cols);
}

void add(float* y, const float* a, const float* b, int64_t n, Stream stream) {
  if (vectorable(n, y, a, b)) {
    launch(add_kernel<float4>, stride_blocks(n / 4), kThreads, stream, reinterpret_cast<float4*>(y),
           reinterpret_cast<const float4*>(a), reinterpret_cast<const float4*>(b), n / 4);
  } else {
    launch(add_kernel<float>, stride_blocks(n), kThreads, stream, y, a, b, n);
  }
}

void sum_n(float* y, const float* const* in, int64_t count, int64_t n, Stream stream) {
  if (count < 1 || count > kMaxSummands)
    return keep_error("cuda: sum_n takes 1 to 256 summands, here are " + std::to_string(count));
  Summands summands{};
  for (int64_t j = 0; j < count; ++j) summands.in[j] = in[j];
  launch(sum_n_kernel, stride_blocks(n), kThreads, stream, y, summands, count, n);
}

void copy_2d(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
             int64_t rows, Stream stream) {
  if (width == 0 || rows == 0) return;
  worked(cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                           static_cast<size_t>(width), static_cast<size_t>(rows),
                           cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
         "copy_2d");
}

void clear(void* to, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  worked(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
         "clear");
}

}  // namespace moe::kernels::cuda
