// LayerNorm: one block per row. RMSNorm: one block per row, or one warp for rows as short as the
// heads of q and k. Sums of columns (gradients of bias, gamma and beta) take two stages inside one
// block: first each thread sums every kLanes-th row, then one thread per column adds the partial
// sums. A block sums eight columns, and no memory is needed between the stages.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr float kEps = 1e-5f;
constexpr int kColumns = 8;

/// Threads of a block that handles a row: half as many where a thread handles more columns at once.
template <class T>
constexpr int kRowThreads = kSummed<T> == 1 ? kThreads : kThreads / 2;
template <class T>
using RowShared = float[kRowThreads<T> / kWarp];

template <class T>
__global__ void layernorm_kernel(T* y, float* mean, float* rstd, const T* x, const float* gamma,
                                 const float* beta, int64_t cols) {
  constexpr int N = kSummed<T>, kStep = kRowThreads<T> * N;
  __shared__ RowShared<T> shared;
  const T* const row = x + blockIdx.x * cols;
  const int64_t first = threadIdx.x * N;
  float sum = 0, squares = 0;
  for (int64_t c = first; c < cols; c += kStep) {
    const auto v = load_columns<N>(row, c, cols, 0);
    for (int i = 0; i < N; ++i) sum += v.at[i];
  }
  const float m = block_sum(sum, shared) / static_cast<float>(cols);
  for (int64_t c = first; c < cols; c += kStep) {
    const auto v = load_columns<N>(row, c, cols, m);
    for (int i = 0; i < N; ++i) {
      const float d = v.at[i] - m;
      squares += d * d;
    }
  }
  const float r = 1 / sqrtf(block_sum(squares, shared) / static_cast<float>(cols) + kEps);
  for (int64_t c = first; c < cols; c += kStep) {
    const auto v = load_columns<N>(row, c, cols, m);
    const auto scale = load_columns<N>(gamma, c, cols, 0),
               shift = load_columns<N>(beta, c, cols, 0);
    store_columns(y + blockIdx.x * cols, c, cols,
                  numbers<N>([&](int i) { return (v.at[i] - m) * r * scale.at[i] + shift.at[i]; }));
  }
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = m;
    rstd[blockIdx.x] = r;
  }
}

template <class T>
__global__ void layernorm_dx_kernel(T* dx, const T* dy, const T* x, const float* mean,
                                    const float* rstd, const float* gamma, const T* acc,
                                    int64_t cols) {
  constexpr int N = kSummed<T>, kStep = kRowThreads<T> * N;
  __shared__ RowShared<T> shared;
  const int64_t row = blockIdx.x * cols, first = threadIdx.x * N;
  const float m = mean[blockIdx.x], r = rstd[blockIdx.x];
  float sum = 0, sum_xhat = 0;
  for (int64_t c = first; c < cols; c += kStep) {
    const auto v = load_columns<N>(x + row, c, cols, m),
               grad = load_columns<N>(dy + row, c, cols, 0);
    const auto scale = load_columns<N>(gamma, c, cols, 0);
    for (int i = 0; i < N; ++i) {
      const float dxhat = grad.at[i] * scale.at[i];
      sum += dxhat;
      sum_xhat += dxhat * (v.at[i] - m) * r;
    }
  }
  const float mean_dxhat = block_sum(sum, shared) / static_cast<float>(cols);
  const float mean_xhat = block_sum(sum_xhat, shared) / static_cast<float>(cols);
  for (int64_t c = first; c < cols; c += kStep) {
    const auto v = load_columns<N>(x + row, c, cols, m),
               grad = load_columns<N>(dy + row, c, cols, 0);
    const auto scale = load_columns<N>(gamma, c, cols, 0);
    const auto before = acc ? load_columns<N>(acc + row, c, cols, 0) : Numbers<N>{};
    store_columns(dx + row, c, cols, numbers<N>([&](int i) {
                    const float xhat = (v.at[i] - m) * r;
                    return before.at[i] +
                           r * (grad.at[i] * scale.at[i] - mean_dxhat - xhat * mean_xhat);
                  }));
  }
}

/// Sums of kColumns columns over all rows, computed by one block.
template <class T>
struct ColumnSums {
  static constexpr int N = kSummed<T>;
  static constexpr int kAcross = kColumns / N;       // threads next to each other in a row
  static constexpr int kLanes = kThreads / kAcross;  // rows that are read at the same time
  using Shared = float[kLanes][kColumns];

  static __device__ int64_t block_column() { return static_cast<int64_t>(blockIdx.x) * kColumns; }
  static __device__ int first_row() { return static_cast<int>(threadIdx.x) / kAcross; }
  /// The first column of this thread in the block.
  static __device__ int column() { return static_cast<int>(threadIdx.x) % kAcross * N; }

  static __device__ void keep(Shared& part, const Numbers<N>& sum) {
    for (int i = 0; i < N; ++i) part[first_row()][column() + i] = sum.at[i];
  }
  /// out[c] = acc[c] + the partial sums in order. Call after keep() in all threads and a barrier.
  static __device__ void write(float* out, const float* acc, const Shared& part, int64_t cols) {
    const int64_t c = block_column() + threadIdx.x;
    if (threadIdx.x >= kColumns || c >= cols) return;
    float sum = 0;
    for (int l = 0; l < kLanes; ++l) sum += part[l][threadIdx.x];
    out[c] = (acc ? acc[c] : 0.0f) + sum;
  }
};

template <class T>
__global__ void bias_grad_kernel(float* db, const T* dy, const float* acc, int64_t rows,
                                 int64_t cols) {
  using Sums = ColumnSums<T>;
  constexpr int N = Sums::N;
  __shared__ typename Sums::Shared part;
  const int64_t c = Sums::block_column() + Sums::column();
  Numbers<N> sum{};
  const int64_t end = c < cols ? rows : 0;
  for (int64_t r = Sums::first_row(); r < end; r += Sums::kLanes) {
    const auto grad = load_columns<N>(dy + r * cols, c, cols, 0);
    for (int i = 0; i < N; ++i) sum.at[i] += grad.at[i];
  }
  Sums::keep(part, sum);
  __syncthreads();
  Sums::write(db, acc, part, cols);
}

template <class T>
__global__ void layernorm_dw_kernel(float* dgamma, float* dbeta, const T* dy, const T* x,
                                    const float* mean, const float* rstd, const float* acc_gamma,
                                    const float* acc_beta, int64_t rows, int64_t cols) {
  using Sums = ColumnSums<T>;
  constexpr int N = Sums::N;
  __shared__ typename Sums::Shared part_gamma, part_beta;
  const int64_t c = Sums::block_column() + Sums::column();
  Numbers<N> sum_gamma{}, sum_beta{};
  const int64_t end = c < cols ? rows : 0;
  for (int64_t r = Sums::first_row(); r < end; r += Sums::kLanes) {
    const auto grad = load_columns<N>(dy + r * cols, c, cols, 0);
    const auto v = load_columns<N>(x + r * cols, c, cols, 0);
    for (int i = 0; i < N; ++i) {
      sum_gamma.at[i] += grad.at[i] * (v.at[i] - mean[r]) * rstd[r];
      sum_beta.at[i] += grad.at[i];
    }
  }
  Sums::keep(part_gamma, sum_gamma);
  Sums::keep(part_beta, sum_beta);
  __syncthreads();
  Sums::write(dgamma, acc_gamma, part_gamma, cols);
  Sums::write(dbeta, acc_beta, part_beta, cols);
}

/// The threads that handle one row of RMSNorm: a block, or a warp of a block of kThreads. The order
/// of a row's sum depends on its number of columns alone.
template <class T, bool kOneWarp>
struct RmsRow {
  static constexpr int N = kSummed<T>;
  static constexpr int kStep = (kOneWarp ? kWarp : kRowThreads<T>)*N;

  static __device__ int64_t number() { return kOneWarp ? warp_number() : blockIdx.x; }
  static __device__ int64_t first_column() { return (kOneWarp ? lane() : threadIdx.x) * N; }
  /// The sum over the threads of the row, in every one of them.
  static __device__ float sum(float v, RowShared<T>& shared) {
    if constexpr (kOneWarp) {
      return warp_sum(v);
    } else {
      return block_sum(v, shared);
    }
  }
};
/// The longest row of which a warp takes all columns in a few steps.
constexpr int64_t kWarpColumns = 256;

template <class T, bool kOneWarp>
__global__ void rmsnorm_kernel(T* y, float* rstd, const T* x, const float* gamma, float eps,
                               int64_t rows, int64_t cols) {
  using Row = RmsRow<T, kOneWarp>;
  constexpr int N = Row::N;
  __shared__ RowShared<T> shared;
  const int64_t r = Row::number(), row = r * cols;
  if (r >= rows) return;
  float squares = 0;
  for (int64_t c = Row::first_column(); c < cols; c += Row::kStep) {
    const auto v = load_columns<N>(x + row, c, cols, 0);
    for (int i = 0; i < N; ++i) squares += v.at[i] * v.at[i];
  }
  const float rs = 1 / sqrtf(Row::sum(squares, shared) / static_cast<float>(cols) + eps);
  for (int64_t c = Row::first_column(); c < cols; c += Row::kStep) {
    const auto v = load_columns<N>(x + row, c, cols, 0);
    const auto scale = load_columns<N>(gamma, c, cols, 0);
    store_columns(y + row, c, cols, numbers<N>([&](int i) { return v.at[i] * rs * scale.at[i]; }));
  }
  if (Row::first_column() == 0) rstd[r] = rs;
}

template <class T, bool kOneWarp>
__global__ void rmsnorm_dx_kernel(T* dx, const T* dy, const T* x, const float* rstd,
                                  const float* gamma, const T* acc, int64_t rows, int64_t cols) {
  using Row = RmsRow<T, kOneWarp>;
  constexpr int N = Row::N;
  __shared__ RowShared<T> shared;
  const int64_t number = Row::number(), row = number * cols;
  if (number >= rows) return;
  const float r = rstd[number];
  float sum_xhat = 0;
  for (int64_t c = Row::first_column(); c < cols; c += Row::kStep) {
    const auto v = load_columns<N>(x + row, c, cols, 0),
               grad = load_columns<N>(dy + row, c, cols, 0);
    const auto scale = load_columns<N>(gamma, c, cols, 0);
    for (int i = 0; i < N; ++i) sum_xhat += grad.at[i] * scale.at[i] * v.at[i] * r;
  }
  const float mean_xhat = Row::sum(sum_xhat, shared) / static_cast<float>(cols);
  for (int64_t c = Row::first_column(); c < cols; c += Row::kStep) {
    const auto v = load_columns<N>(x + row, c, cols, 0),
               grad = load_columns<N>(dy + row, c, cols, 0);
    const auto scale = load_columns<N>(gamma, c, cols, 0);
    const auto before = acc ? load_columns<N>(acc + row, c, cols, 0) : Numbers<N>{};
    store_columns(dx + row, c, cols, numbers<N>([&](int i) {
                    return before.at[i] + r * (grad.at[i] * scale.at[i] - v.at[i] * r * mean_xhat);
                  }));
  }
}

template <class T>
__global__ void rmsnorm_dw_kernel(float* dgamma, const T* dy, const T* x, const float* rstd,
                                  const float* acc, int64_t rows, int64_t cols) {
  using Sums = ColumnSums<T>;
  constexpr int N = Sums::N;
  __shared__ typename Sums::Shared part;
  const int64_t c = Sums::block_column() + Sums::column();
  Numbers<N> sum{};
  const int64_t end = c < cols ? rows : 0;
  for (int64_t r = Sums::first_row(); r < end; r += Sums::kLanes) {
    const auto grad = load_columns<N>(dy + r * cols, c, cols, 0);
    const auto v = load_columns<N>(x + r * cols, c, cols, 0);
    for (int i = 0; i < N; ++i) sum.at[i] += grad.at[i] * v.at[i] * rstd[r];
  }
  Sums::keep(part, sum);
  __syncthreads();
  Sums::write(dgamma, acc, part, cols);
}

template <class T>
void bias_grad(float* db, const T* dy, const float* acc, int64_t rows, int64_t cols,
               Stream stream) {
  launch(bias_grad_kernel<T>, blocks_of(cols, kColumns), kThreads, stream, db, dy, acc, rows, cols);
}

template <class T>
void layernorm(T* y, float* mean, float* rstd, const T* x, const float* gamma, const float* beta,
               int64_t rows, int64_t cols, Stream stream) {
  launch(layernorm_kernel<T>, rows, kRowThreads<T>, stream, y, mean, rstd, x, gamma, beta, cols);
}

template <class T>
void layernorm_dx(T* dx, const T* dy, const T* x, const float* mean, const float* rstd,
                  const float* gamma, const T* acc, int64_t rows, int64_t cols, Stream stream) {
  launch(layernorm_dx_kernel<T>, rows, kRowThreads<T>, stream, dx, dy, x, mean, rstd, gamma, acc,
         cols);
}

template <class T>
void layernorm_dw(float* dgamma, float* dbeta, const T* dy, const T* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream stream) {
  launch(layernorm_dw_kernel<T>, blocks_of(cols, kColumns), kThreads, stream, dgamma, dbeta, dy, x,
         mean, rstd, acc_gamma, acc_beta, rows, cols);
}

template <class T>
void rmsnorm(T* y, float* rstd, const T* x, const float* gamma, float eps, int64_t rows,
             int64_t cols, Stream stream) {
  if (cols <= kWarpColumns) {
    launch(rmsnorm_kernel<T, true>, blocks_of(rows, kWarps), kThreads, stream, y, rstd, x, gamma,
           eps, rows, cols);
  } else {
    launch(rmsnorm_kernel<T, false>, rows, kRowThreads<T>, stream, y, rstd, x, gamma, eps, rows,
           cols);
  }
}

template <class T>
void rmsnorm_dx(T* dx, const T* dy, const T* x, const float* rstd, const float* gamma, const T* acc,
                int64_t rows, int64_t cols, Stream stream) {
  if (cols <= kWarpColumns) {
    launch(rmsnorm_dx_kernel<T, true>, blocks_of(rows, kWarps), kThreads, stream, dx, dy, x, rstd,
           gamma, acc, rows, cols);
  } else {
    launch(rmsnorm_dx_kernel<T, false>, rows, kRowThreads<T>, stream, dx, dy, x, rstd, gamma, acc,
           rows, cols);
  }
}

template <class T>
void rmsnorm_dw(float* dgamma, const T* dy, const T* x, const float* rstd, const float* acc,
                int64_t rows, int64_t cols, Stream stream) {
  launch(rmsnorm_dw_kernel<T>, blocks_of(cols, kColumns), kThreads, stream, dgamma, dy, x, rstd,
         acc, rows, cols);
}

}  // namespace

template <class T>
void layernorm_kernels(KernelTable<T>& table) {
  table.bias_grad = bias_grad<T>;
  table.layernorm = layernorm<T>;
  table.layernorm_dx = layernorm_dx<T>;
  table.layernorm_dw = layernorm_dw<T>;
  table.rmsnorm = rmsnorm<T>;
  table.rmsnorm_dx = rmsnorm_dx<T>;
  table.rmsnorm_dw = rmsnorm_dw<T>;
}
template void layernorm_kernels(KernelTable<float>&);
template void layernorm_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
