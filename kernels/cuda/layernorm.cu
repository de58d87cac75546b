// LayerNorm: a block a row. Column sums (of the bias and of gamma and beta) take two stages inside
// one block: kLanes threads a column sum every kLanes-th row, then one adds the partial sums. Eight
// columns a block are one 32-byte sector a row, and no memory is needed between the stages.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr float kEps = 1e-5f;
constexpr int kColumns = 8;
constexpr int kLanes = kThreads / kColumns;

__global__ void layernorm_kernel(float* y, float* mean, float* rstd, const float* x,
                                 const float* gamma, const float* beta, int64_t cols) {
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x * cols;
  float sum = 0, squares = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) sum += x[row + c];
  const float m = block_sum(sum, shared) / static_cast<float>(cols);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float d = x[row + c] - m;
    squares += d * d;
  }
  const float r = 1 / sqrtf(block_sum(squares, shared) / static_cast<float>(cols) + kEps);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads)
    y[row + c] = (x[row + c] - m) * r * gamma[c] + beta[c];
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = m;
    rstd[blockIdx.x] = r;
  }
}

__global__ void layernorm_dx_kernel(float* dx, const float* dy, const float* x, const float* mean,
                                    const float* rstd, const float* gamma, const float* acc,
                                    int64_t cols) {
  __shared__ float shared[kWarps];
  const int64_t row = blockIdx.x * cols;
  const float m = mean[blockIdx.x], r = rstd[blockIdx.x];
  float sum = 0, sum_xhat = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float dxhat = dy[row + c] * gamma[c];
    sum += dxhat;
    sum_xhat += dxhat * (x[row + c] - m) * r;
  }
  const float mean_dxhat = block_sum(sum, shared) / static_cast<float>(cols);
  const float mean_xhat = block_sum(sum_xhat, shared) / static_cast<float>(cols);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const float xhat = (x[row + c] - m) * r;
    dx[row + c] =
        (acc ? acc[row + c] : 0.0f) + r * (dy[row + c] * gamma[c] - mean_dxhat - xhat * mean_xhat);
  }
}

/// The sum over the kLanes partial sums of this thread's column, in their order.
__device__ float column_total(const float (&part)[kLanes][kColumns], int column) {
  float sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += part[l][column];
  return sum;
}

__global__ void bias_grad_kernel(float* db, const float* dy, const float* acc, int64_t rows,
                                 int64_t cols) {
  __shared__ float part[kLanes][kColumns];
  const int column = threadIdx.x % kColumns, first = threadIdx.x / kColumns;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + column;
  float sum = 0;
  for (int64_t r = first; r < rows && c < cols; r += kLanes) sum += dy[r * cols + c];
  part[first][column] = sum;
  __syncthreads();
  if (first == 0 && c < cols) db[c] = (acc ? acc[c] : 0.0f) + column_total(part, column);
}

__global__ void layernorm_dw_kernel(float* dgamma, float* dbeta, const float* dy, const float* x,
                                    const float* mean, const float* rstd, const float* acc_gamma,
                                    const float* acc_beta, int64_t rows, int64_t cols) {
  __shared__ float part_gamma[kLanes][kColumns], part_beta[kLanes][kColumns];
  const int column = threadIdx.x % kColumns, first = threadIdx.x / kColumns;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + column;
  float sum_gamma = 0, sum_beta = 0;
  for (int64_t r = first; r < rows && c < cols; r += kLanes) {
    const float grad = dy[r * cols + c];
    sum_gamma += grad * (x[r * cols + c] - mean[r]) * rstd[r];
    sum_beta += grad;
  }
  part_gamma[first][column] = sum_gamma;
  part_beta[first][column] = sum_beta;
  __syncthreads();
  if (first != 0 || c >= cols) return;
  dgamma[c] = (acc_gamma ? acc_gamma[c] : 0.0f) + column_total(part_gamma, column);
  dbeta[c] = (acc_beta ? acc_beta[c] : 0.0f) + column_total(part_beta, column);
}

}  // namespace

void bias_grad(float* db, const float* dy, const float* acc, int64_t rows, int64_t cols,
               Stream stream) {
  launch(bias_grad_kernel, blocks_of(cols, kColumns), kThreads, stream, db, dy, acc, rows, cols);
}

void layernorm(float* y, float* mean, float* rstd, const float* x, const float* gamma,
               const float* beta, int64_t rows, int64_t cols, Stream stream) {
  launch(layernorm_kernel, rows, kThreads, stream, y, mean, rstd, x, gamma, beta, cols);
}

void layernorm_dx(float* dx, const float* dy, const float* x, const float* mean, const float* rstd,
                  const float* gamma, const float* acc, int64_t rows, int64_t cols, Stream stream) {
  launch(layernorm_dx_kernel, rows, kThreads, stream, dx, dy, x, mean, rstd, gamma, acc, cols);
}

void layernorm_dw(float* dgamma, float* dbeta, const float* dy, const float* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream stream) {
  launch(layernorm_dw_kernel, blocks_of(cols, kColumns), kThreads, stream, dgamma, dbeta, dy, x,
         mean, rstd, acc_gamma, acc_beta, rows, cols);
}

}  // namespace moe::kernels::cuda
