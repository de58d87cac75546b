// Losses, each with its gradient in place. A block handles every gridDim-th row and adds the losses
// of its rows in double, in order; then one warp adds the sums of the blocks. Between the two
// launches the sums are in a fixed piece of device memory, one piece per stream, since the kernel
// table has no work area for losses; so losses on different streams do not conflict.
#include <algorithm>
#include <array>
#include <mutex>
#include <optional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int kPartials = 264;  // most blocks per loss: two for each multiprocessor of an H100
constexpr int kStreams = 64;

__device__ double partial_loss[kStreams * kPartials];

/// Which stream owns each piece of partial_loss; a piece without an owner is free.
struct Pieces {
  std::mutex mutex;
  std::array<std::optional<Stream>, kStreams> owner;

  /// Returns the first piece with this owner, or -1.
  int find(std::optional<Stream> stream) const {
    const auto at = std::find(owner.begin(), owner.end(), stream);
    return at == owner.end() ? -1 : static_cast<int>(at - owner.begin());
  }
};
Pieces pieces;

/// Returns the piece that a stream has until it is destroyed; -1 (see errors.h) if none is free.
int piece_of(Stream stream) {
  const std::lock_guard<std::mutex> lock(pieces.mutex);
  int piece = pieces.find(stream);
  if (piece >= 0) return piece;
  piece = pieces.find(std::nullopt);
  if (piece < 0) {
    keep_error("cuda: losses run on more than 64 streams; at most 64 are possible");
  } else {
    pieces.owner[static_cast<size_t>(piece)] = stream;
  }
  return piece;
}

int64_t loss_blocks(int64_t rows) {
  return rows < kPartials ? rows : kPartials;
}

__global__ void total_kernel(double* loss, int piece, int count) {
  double sum = 0;
  for (int i = lane(); i < count; i += kWarp) sum += partial_loss[piece * kPartials + i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *loss = sum;
}

/// The maximum of a row and the sum of exp(x - top) over it, in every thread of the block.
struct SoftmaxSums {
  float top, sum;
};
template <class T>
__device__ SoftmaxSums softmax_sums(const T* row, int64_t cols, float (&shared)[kWarps]) {
  constexpr int N = kSummed<T>;
  float top = -INFINITY, sum = 0;
  for (int64_t c = threadIdx.x * N; c < cols; c += kThreads * N) {
    const auto x = load_columns<N>(row, c, cols, -INFINITY);
    for (int i = 0; i < N; ++i) top = max_or_nan(top, x.at[i]);
  }
  top = block_max(top, shared);
  for (int64_t c = threadIdx.x * N; c < cols; c += kThreads * N) {
    const auto x = load_columns<N>(row, c, cols, -INFINITY);
    for (int i = 0; i < N; ++i) sum += expf(x.at[i] - top);
  }
  return {top, block_sum(sum, shared)};
}

/// row[c] = f(row[c], c) for all columns, by the whole block. Packs begin at aligned addresses:
/// here no result depends on which thread computes it.
template <class T, class F>
__device__ void change(T* row, int64_t cols, F f) {
  constexpr int N = kPack<T>;
  const int64_t to_pack = (16 - bytes_off(row)) % 16 / sizeof(T);
  const int64_t first = to_pack < cols ? to_pack : cols;
  const int64_t last = first + (cols - first) / N * N;  // end of the last pack
  for (int64_t c = first + threadIdx.x * N; c < last; c += kThreads * N) {
    const auto x = load<N>(row + c);
    store(row + c, numbers<N>([&](int i) { return f(x.at[i], c + i); }));
  }
  const int64_t c = threadIdx.x < first ? threadIdx.x : last - first + threadIdx.x;
  if (c < cols) store(row + c, Numbers<1>{{f(load<1>(row + c).at[0], c)}});
}

template <class T>
__global__ void cross_entropy_kernel(T* logits, const int32_t* target, double scale, bool gradient,
                                     int64_t tokens, int64_t vocab, int64_t pitch, int piece) {
  __shared__ float shared[kWarps];
  double loss = 0;
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    T* const row = logits + t * pitch;
    const int32_t wanted = target[t];
    // Read by all threads before the barriers in softmax_sums(), since change() overwrites it.
    const float at_target = load<1>(row + wanted).at[0];
    const SoftmaxSums s = softmax_sums(row, vocab, shared);
    loss += scale * (log(static_cast<double>(s.sum)) + (static_cast<double>(s.top) - at_target));
    if (!gradient) continue;
    const auto factor = static_cast<float>(scale);
    change(row, pitch, [&](float x, int64_t v) {
      return v < vocab ? factor * (expf(x - s.top) / s.sum - (v == wanted ? 1 : 0)) : 0.0f;
    });
  }
  if (threadIdx.x == 0) partial_loss[piece * kPartials + blockIdx.x] = loss;
}

__global__ void balance_loss_kernel(float* p, const float* load, ScoreRule rule, double scale,
                                    int64_t tokens, int64_t experts, int piece) {
  __shared__ float shared[kWarps];
  const auto factor = static_cast<float>(scale);
  double loss = 0;
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float* row = p + t * experts;
    float scores = 0, weighted = 0;
    for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
      scores += row[e];
      weighted += load[e] * row[e];
    }
    const float all = block_sum(scores, shared);
    const float sum = rule == ScoreRule::kSoftmax ? 1 : all;
    const float mean = block_sum(weighted, shared) / sum;
    loss += scale * mean;
    for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
      const float slope = rule == ScoreRule::kSoftmax ? row[e] : row[e] * (1 - row[e]) / sum;
      row[e] = factor * (load[e] - mean) * slope;
    }
  }
  if (threadIdx.x == 0) partial_loss[piece * kPartials + blockIdx.x] = loss;
}

__global__ void z_loss_kernel(float* logits, double scale, int64_t tokens, int64_t experts,
                              int piece) {
  __shared__ float shared[kWarps];
  double loss = 0;
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    float* row = logits + t * experts;
    const SoftmaxSums s = softmax_sums(row, experts, shared);
    const double z = s.top + log(static_cast<double>(s.sum));
    loss += scale * z * z;
    const auto factor = static_cast<float>(2 * scale * z);
    for (int64_t e = threadIdx.x; e < experts; e += kThreads)
      row[e] = factor * expf(row[e] - s.top) / s.sum;
  }
  if (threadIdx.x == 0) partial_loss[piece * kPartials + blockIdx.x] = loss;
}

void total(double* loss, int piece, int64_t rows, Stream stream) {
  launch(total_kernel, 1, kWarp, stream, loss, piece, static_cast<int>(loss_blocks(rows)));
}

template <class T>
void cross_entropy(double* loss, T* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, int64_t pitch, Stream stream) {
  const int piece = piece_of(stream);
  if (piece < 0) return;
  launch(cross_entropy_kernel<T>, loss_blocks(tokens), kThreads, stream, logits, target, scale,
         gradient, tokens, vocab, pitch, piece);
  total(loss, piece, tokens, stream);
}

}  // namespace

template <class T>
void loss_kernels(KernelTable<T>& table) {
  table.cross_entropy = cross_entropy<T>;
}
template void loss_kernels(KernelTable<float>&);
template void loss_kernels(KernelTable<Bf16>&);

void forget_losses(Stream stream) {
  const std::lock_guard<std::mutex> lock(pieces.mutex);
  const int piece = pieces.find(stream);
  if (piece >= 0) pieces.owner[static_cast<size_t>(piece)].reset();
}

void balance_loss(double* loss, float* p, const float* load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream stream) {
  const int piece = piece_of(stream);
  if (piece < 0) return;
  launch(balance_loss_kernel, loss_blocks(tokens), kThreads, stream, p, load, rule, scale, tokens,
         experts, piece);
  total(loss, piece, tokens, stream);
}

void z_loss(double* loss, float* logits, double scale, int64_t tokens, int64_t experts,
            Stream stream) {
  const int piece = piece_of(stream);
  if (piece < 0) return;
  launch(z_loss_kernel, loss_blocks(tokens), kThreads, stream, logits, scale, tokens, experts,
         piece);
  total(loss, piece, tokens, stream);
}

}  // namespace moe::kernels::cuda
