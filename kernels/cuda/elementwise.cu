// Elementwise ops: threads stride over elements, in one pass over each operand.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr float kSqrt2OverPi = 0.79788456080286535588f;
constexpr float kCubic = 0.044715f;
constexpr int kMaxSummands = 256;

template <class T>
struct Summands {  // passed by value, since the list is in host memory
  const T* in[kMaxSummands];
};

/// The column of a thread's first number as it strides on, without a division per step.
template <int N>
class Column {
 public:
  __device__ explicit Column(int64_t cols)
      : cols_(cols), step_(num_threads() * N % cols), at_(thread_number() * N % cols) {}
  __device__ int64_t at() const { return at_; }
  __device__ void advance() {
    at_ += step_;
    if (at_ >= cols_) at_ -= cols_;
  }

 private:
  int64_t cols_, step_, at_;
};

template <class T, int N>
__global__ void fill_bias_kernel(T* y, const float* bias, const T* residual, int64_t n,
                                 int64_t cols) {
  Column<N> c(cols);
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N, c.advance()) {
    const auto b = load_or_zero<N>(bias, c.at()), r = load_or_zero<N>(residual, i);
    store(y + i, numbers<N>([&](int j) { return b.at[j] + r.at[j]; }));
  }
}

__device__ float gelu_of(float z) {
  return 0.5f * z * (1 + tanhf(kSqrt2OverPi * (z + kCubic * z * z * z)));
}

__device__ float gelu_slope(float z) {
  const float t = tanhf(kSqrt2OverPi * (z + kCubic * z * z * z));
  const float du = kSqrt2OverPi * (1 + 3 * kCubic * z * z);
  return 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * du;
}

template <class T, int N>
__global__ void gelu_kernel(T* y, const T* x, const float* bias, int64_t n, int64_t cols) {
  Column<N> c(cols);
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N, c.advance()) {
    const auto v = load<N>(x + i), b = load_or_zero<N>(bias, c.at());
    store(y + i, numbers<N>([&](int j) { return gelu_of(v.at[j] + b.at[j]); }));
  }
}

template <class T, int N>
__global__ void gelu_dx_kernel(T* dx, const T* dy, const T* x, const float* bias, int64_t n,
                               int64_t cols) {
  Column<N> c(cols);
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N, c.advance()) {
    const auto v = load<N>(x + i), b = load_or_zero<N>(bias, c.at()), d = load<N>(dy + i);
    store(dx + i, numbers<N>([&](int j) { return d.at[j] * gelu_slope(v.at[j] + b.at[j]); }));
  }
}

struct Gated {  // GatedForm in float
  float limit, alpha, offset;
  __device__ float gate(float v) const { return v > limit ? limit : v; }
  __device__ float other(float v) const {
    return (v > limit ? limit : v < -limit ? -limit : v) + offset;
  }
  __device__ float sigmoid(float g) const { return 1 / (1 + expf(-alpha * g)); }
  __device__ float of(float v, float up) const {
    const float g = gate(v);
    return g * sigmoid(g) * other(up);
  }
};

/// Numbers of y at i are of the gates at 2 i - c in x, c being their column, and of the operands
/// that are `cols` numbers after the gates.
template <class T, int N>
__global__ void silu_mul_kernel(T* y, const T* x, const float* weight, Gated f, int64_t n,
                                int64_t cols) {
  Column<N> c(cols);
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N, c.advance()) {
    const T* const from = x + 2 * i - c.at();
    const auto gate = load<N>(from), other = load<N>(from + cols);
    const float w = weight ? weight[i / cols] : 1;
    store(y + i, numbers<N>([&](int j) { return w * f.of(gate.at[j], other.at[j]); }));
  }
}

template <class T, int N>
__global__ void silu_mul_dx_kernel(T* dx, const T* dy, const T* x, const float* weight, Gated f,
                                   int64_t n, int64_t cols) {
  Column<N> c(cols);
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N, c.advance()) {
    const int64_t at = 2 * i - c.at();
    const auto gate = load<N>(x + at), other = load<N>(x + at + cols);
    auto d = load<N>(dy + i);
    const float w = weight ? weight[i / cols] : 1;
    Numbers<N> dgate, dother;
    for (int j = 0; j < N; ++j) {
      d.at[j] *= w;
      const float g = f.gate(gate.at[j]), s = f.sigmoid(g);
      const float slope = s + f.alpha * g * s * (1 - s);
      dgate.at[j] = gate.at[j] > f.limit ? 0.0f : d.at[j] * f.other(other.at[j]) * slope;
      dother.at[j] = fabsf(other.at[j]) > f.limit ? 0.0f : d.at[j] * (g * s);
    }
    store(dx + at, dgate);
    store(dx + at + cols, dother);
  }
}

template <class T, int N>
__global__ void map_kernel(T* y, const T* x, Map map, float factor, const T* acc, int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    const auto v = load<N>(x + i), a = load_or_zero<N>(acc, i);
    store(y + i, numbers<N>([&](int j) { return a.at[j] + map_of(map, v.at[j], factor); }));
  }
}

template <class T, int N>
__global__ void map_dx_kernel(T* dx, const T* dy, const T* y, Map map, const T* acc, int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    const auto d = load<N>(dy + i), v = load<N>(y + i), a = load_or_zero<N>(acc, i);
    store(dx + i, numbers<N>([&](int j) { return a.at[j] + map_dx_of(map, d.at[j], v.at[j]); }));
  }
}

template <class T, int N>
__global__ void mul_kernel(T* y, const T* a, const T* b, const T* acc, int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    const auto u = load<N>(a + i), v = load<N>(b + i), before = load_or_zero<N>(acc, i);
    store(y + i, numbers<N>([&](int j) { return before.at[j] + u.at[j] * v.at[j]; }));
  }
}

/// b has one number for `cols` numbers of a.
template <class T, int N>
__global__ void mul_by_row_kernel(T* y, const T* a, const T* b, const T* acc, int64_t n,
                                  int64_t cols) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    const auto u = load<N>(a + i), before = load_or_zero<N>(acc, i);
    const float factor = load<1>(b + i / cols).at[0];
    store(y + i, numbers<N>([&](int j) { return before.at[j] + u.at[j] * factor; }));
  }
}

/// A warp adds a row: dy times what silu_mul computes of x without a weight.
template <class T>
__global__ void silu_mul_dweight_kernel(float* dweight, const T* dy, const T* x, Gated f,
                                        int64_t rows, int64_t cols) {
  constexpr int N = kSummed<T>;
  const int64_t r = warp_number();
  if (r >= rows) return;  // the whole warp returns
  const T* const from = x + 2 * r * cols;
  float sum = 0;
  for (int64_t c = lane() * N; c < cols; c += kWarp * N) {
    const auto d = load_columns<N>(dy + r * cols, c, cols, 0);
    const auto gate = load_columns<N>(from, c, cols, 0);
    const auto other = load_columns<N>(from + cols, c, cols, 0);
    for (int j = 0; j < N; ++j) sum += d.at[j] * f.of(gate.at[j], other.at[j]);
  }
  sum = warp_sum(sum);
  if (lane() == 0) dweight[r] = sum;
}

/// A warp adds a row.
template <class T>
__global__ void row_dot_kernel(T* y, const T* a, const T* b, int64_t rows, int64_t cols) {
  constexpr int N = kSummed<T>;
  const int64_t r = warp_number();
  if (r >= rows) return;  // the whole warp returns
  float sum = 0;
  for (int64_t c = lane() * N; c < cols; c += kWarp * N) {
    const auto u = load_columns<N>(a + r * cols, c, cols, 0);
    const auto v = load_columns<N>(b + r * cols, c, cols, 0);
    for (int j = 0; j < N; ++j) sum += u.at[j] * v.at[j];
  }
  sum = warp_sum(sum);
  if (lane() == 0) store(y + r, Numbers<1>{{sum}});
}

template <class T, int N>
__global__ void add_kernel(T* y, const T* a, const T* b, int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    const auto u = load<N>(a + i), v = load<N>(b + i);
    store(y + i, numbers<N>([&](int j) { return u.at[j] + v.at[j]; }));
  }
}

template <class T, int N>
__global__ void sum_n_kernel(T* y, Summands<T> summands, int64_t count, int64_t n) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    auto sum = load<N>(summands.in[0] + i);
    for (int64_t s = 1; s < count; ++s) {
      const auto v = load<N>(summands.in[s] + i);
      for (int j = 0; j < N; ++j) sum.at[j] += v.at[j];
    }
    store(y + i, sum);
  }
}

}  // namespace

template <class T>
void fill_bias(T* y, const float* bias, const T* residual, int64_t rows, int64_t cols,
               Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = rows * cols;
    launch(fill_bias_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, bias, residual, n,
           cols);
  };
  in_packs<T>(run, cols, y, bias, residual);
}

template <class T>
void gelu(T* y, const T* x, const float* bias, int64_t rows, int64_t cols, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = rows * cols;
    launch(gelu_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, x, bias, n, cols);
  };
  in_packs<T>(run, cols, y, x, bias);
}

template <class T>
void gelu_dx(T* dx, const T* dy, const T* x, const float* bias, int64_t rows, int64_t cols,
             Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = rows * cols;
    launch(gelu_dx_kernel<T, N>, stride_blocks(n / N), kThreads, stream, dx, dy, x, bias, n, cols);
  };
  in_packs<T>(run, cols, dx, dy, x, bias);
}

template void fill_bias(float*, const float*, const float*, int64_t, int64_t, Stream);
template void fill_bias(Bf16*, const float*, const Bf16*, int64_t, int64_t, Stream);

namespace {

Gated in_float(const GatedForm& f) {
  return {static_cast<float>(f.limit), static_cast<float>(f.alpha), static_cast<float>(f.offset)};
}

template <class T>
void silu_mul(T* y, const T* x, const float* weight, GatedForm form, int64_t rows, int64_t cols,
              Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = rows * cols;
    launch(silu_mul_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, x, weight,
           in_float(form), n, cols);
  };
  in_packs<T>(run, cols, y, x);
}

template <class T>
void silu_mul_dx(T* dx, float* dweight, const T* dy, const T* x, const float* weight,
                 GatedForm form, int64_t rows, int64_t cols, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = rows * cols;
    launch(silu_mul_dx_kernel<T, N>, stride_blocks(n / N), kThreads, stream, dx, dy, x, weight,
           in_float(form), n, cols);
  };
  in_packs<T>(run, cols, dx, dy, x);
  if (weight)
    launch(silu_mul_dweight_kernel<T>, blocks_of(rows, kWarps), kThreads, stream, dweight, dy, x,
           in_float(form), rows, cols);
}

template <class T>
void map(T* y, const T* x, Map map, float factor, const T* acc, int64_t n, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    launch(map_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, x, map, factor, acc, n);
  };
  in_packs<T>(run, n, y, x, acc);
}

template <class T>
void map_dx(T* dx, const T* dy, const T* y, Map map, const T* acc, int64_t n, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    launch(map_dx_kernel<T, N>, stride_blocks(n / N), kThreads, stream, dx, dy, y, map, acc, n);
  };
  in_packs<T>(run, n, dx, dy, y, acc);
}

template <class T>
void mul(T* y, const T* a, const T* b, const T* acc, int64_t rows, int64_t cols, bool by_row,
         Stream stream) {
  const int64_t n = rows * cols;
  const auto each = [&](auto at_once) {
    constexpr int N = at_once;
    launch(mul_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, a, b, acc, n);
  };
  const auto each_by_row = [&](auto at_once) {
    constexpr int N = at_once;
    launch(mul_by_row_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, a, b, acc, n, cols);
  };
  if (by_row) return in_packs<T>(each_by_row, cols, y, a, acc);
  in_packs<T>(each, n, y, a, b, acc);
}

template <class T>
void row_dot(T* y, const T* a, const T* b, int64_t rows, int64_t cols, Stream stream) {
  launch(row_dot_kernel<T>, blocks_of(rows, kWarps), kThreads, stream, y, a, b, rows, cols);
}

template <class T>
void add(T* y, const T* a, const T* b, int64_t n, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    launch(add_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, a, b, n);
  };
  in_packs<T>(run, n, y, a, b);
}

template <class T>
void sum_n(T* y, const T* const* in, int64_t count, int64_t n, Stream stream) {
  if (count < 1 || count > kMaxSummands)
    return keep_error("cuda: sum_n got " + std::to_string(count) +
                      " summands; 1 to 256 are allowed");
  Summands<T> summands{};
  bool packs = vectorable<kPack<T>>(n, y);
  for (int64_t j = 0; j < count; ++j) {
    summands.in[j] = in[j];
    packs = packs && vectorable<kPack<T>>(n, in[j]);
  }
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    launch(sum_n_kernel<T, N>, stride_blocks(n / N), kThreads, stream, y, summands, count, n);
  };
  in_packs<T>(run, packs ? 0 : 1);
}

}  // namespace

template <class T>
void elementwise_kernels(KernelTable<T>& table) {
  table.gelu = gelu<T>;
  table.gelu_dx = gelu_dx<T>;
  table.silu_mul = silu_mul<T>;
  table.silu_mul_dx = silu_mul_dx<T>;
  table.map = map<T>;
  table.map_dx = map_dx<T>;
  table.mul = mul<T>;
  table.row_dot = row_dot<T>;
  table.add = add<T>;
  table.sum_n = sum_n<T>;
}
template void elementwise_kernels(KernelTable<float>&);
template void elementwise_kernels(KernelTable<Bf16>&);

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
