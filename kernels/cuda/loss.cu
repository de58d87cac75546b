// Losses, each with its gradient in place. A block adds the losses of its rows in double, in order;
// then one warp adds the sums of the blocks, whose number depends on the shape alone. Between the
// two launches the sums are in the stream's work area.
#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

__global__ void total_kernel(double* loss, const double* parts, int64_t count) {
  double sum = 0;
  for (int64_t i = lane(); i < count; i += kWarp) sum += parts[i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *loss = sum;
}

/// Calls run(parts) with an element for the loss of each block, then adds these to `loss`.
template <class Run>
void in_blocks(double* loss, int64_t blocks, Stream stream, Run run) {
  const int64_t bytes = blocks * static_cast<int64_t>(sizeof(double));
  auto* const parts = static_cast<double*>(work_area(stream, bytes));
  if (parts == nullptr) return;
  run(parts);
  launch(total_kernel, 1, kWarp, stream, loss, parts, blocks);
}

/// Threads of a block that handles a row of logits: with GPT-2's vocabulary, the shared memory of a
/// multiprocessor has room for two rows in bfloat16, or one in float32, and 1024 threads.
template <class T>
constexpr int kLogitThreads = 256 * sizeof(T);
/// Most blocks: two for each multiprocessor of an H100.
constexpr int64_t kLogitBlocks = 264;
constexpr float kLowest = -3.402823466e38f, kLog2E = 1.44269504f;

/// The loss of every gridDim-th row of `stride` logits, of which the first `cols` exist, and, with
/// `gradient`, the gradient in their place, 0 after those that exist. If kHeld, a row is read once
/// and then kept in shared memory. Positions in it count from the last multiple of 16 bytes before
/// it; whole packs lie from `first` to `last`, and each number beside these is some thread's
/// `single`. Only the sum must not depend on the row's address, so it goes by columns. A NaN may be
/// lost in `top`, not in the sum.
template <class T, bool kHeld>
__global__ void __launch_bounds__(kLogitThreads<T>, 1024 / kLogitThreads<T>)
    cross_entropy_kernel(double* parts, T* logits, const int32_t* target, double scale,
                         bool gradient, int64_t tokens, int64_t stride, int64_t cols) {
  constexpr int N = kPack<T>, kThreadsOf = kLogitThreads<T>, kStep = kThreadsOf * N, kAtOnce = 4;
  MOE_DYNAMIC_SHARED(uint4, held);
  __shared__ float shared[kThreadsOf / kWarp];
  const auto thread = static_cast<int>(threadIdx.x), count = static_cast<int>(cols);
  const auto factor = static_cast<float>(scale);
  double loss = 0;
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    T* const row = logits + t * stride;
    const int begin = static_cast<int>(bytes_off(row) / sizeof(T)), end = begin + count;
    const int aligned = (begin + N - 1) / N * N, first = aligned < end ? aligned : end;
    const int last = first + (end - first) / N * N, before = first - begin;
    const int single = thread < before ? begin + thread : last + thread - before;
    T* const packs = row - begin;
    T* const from = kHeld ? reinterpret_cast<T*>(held) : packs;
    // Read before the barriers, after which other threads write the gradient.
    const bool counts = target[t] >= 0;
    const float at_target = thread == 0 && counts ? load<1>(row + target[t]).at[0] : 0;

    // Each thread adds its packs as they arrive, relative to the largest number that it has seen.
    float top = kLowest, sum = 0;
    const auto power = [&](float x) { return fast_exp2((x - top) * kLog2E); };
    const auto add = [&](const Numbers<N>& x) {
      float most = x.at[0];
      for (int i = 1; i < N; ++i) most = fmaxf(most, x.at[i]);
      if (most > top) {
        sum *= fast_exp2((top - most) * kLog2E);
        top = most;
      }
      for (int i = 0; i < N; ++i) sum += power(x.at[i]);
    };
    if (kHeld && single < end) from[single] = packs[single];
    for (int at = first + thread * N; at < last; at += kAtOnce * kStep) {
      uint4 bits[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k)
        if (at + k * kStep < last)
          bits[k] = *reinterpret_cast<const uint4*>(packs + at + k * kStep);
      for (int k = 0; k < kAtOnce; ++k) {
        if (at + k * kStep >= last) break;
        if constexpr (kHeld) *reinterpret_cast<uint4*>(from + at + k * kStep) = bits[k];
        if (begin == 0) add(load<N>(reinterpret_cast<const T*>(&bits[k])));
      }
    }
    // In a row that does not begin at a multiple of 16 bytes, other packs than those of columns.
    for (int c = thread * N; c < count; c += kStep)
      if (begin > 0 || c >= last) add(load_columns<N>(row, c, count, -INFINITY));
    const float own_top = top;
    top = block_max(top, shared);
    sum = block_sum(sum * fast_exp2((own_top - top) * kLog2E), shared);
    if (thread == 0 && counts)
      loss += scale * (log(static_cast<double>(sum)) + (static_cast<double>(top) - at_target));
    if (gradient) {
      const float slope = factor / sum;
      // A row without a target has 0, whatever its logits.
      const auto gradient_of = [&](float x) { return counts ? power(x) * slope : 0; };
      if (single < end)
        store(packs + single, Numbers<1>{{gradient_of(load<1>(from + single).at[0])}});
      for (int at = first + thread * N; at < last; at += kStep) {
        const auto x = load<N>(from + at);
        const auto grad = numbers<N>([&](int i) { return gradient_of(x.at[i]); });
        uint4 bits;
        store(reinterpret_cast<T*>(&bits), grad);
        __stcs(reinterpret_cast<uint4*>(packs + at), bits);
      }
      for (int64_t c = count + thread; c < stride; c += kThreadsOf) store(row + c, Numbers<1>{});
      __syncthreads();
      if (thread == 0 && counts)
        store(row + target[t], Numbers<1>{{power(at_target) * slope - factor}});
    }
    __syncthreads();  // until here, threads read what is held
  }
  if (thread == 0) parts[blockIdx.x] = loss;
}

template <class T>
void cross_entropy(double* loss, T* logits, const int32_t* target, double scale, bool gradient,
                   int64_t tokens, int64_t vocab, int64_t pitch, Stream stream) {
  const int64_t blocks = std::min(tokens, kLogitBlocks);
  const int64_t bytes = blocks_of(vocab + kPack<T> - 1, kPack<T>) * 16;
  const bool held = cudaFuncSetAttribute(cross_entropy_kernel<T, true>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)) == cudaSuccess;
  if (!held) cudaGetLastError();  // the device has less shared memory
  in_blocks(loss, blocks, stream, [&](double* parts) {
    launch_with_shared(held ? bytes : 0,
                       held ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>,
                       blocks, kLogitThreads<T>, stream, parts, logits, target, scale, gradient,
                       tokens, pitch, vocab);
  });
}

/// Each warp takes every so many rows of the routers' losses; a block adds the losses of its warps.
/// Most blocks: four for each multiprocessor of an H100.
int64_t router_blocks(int64_t tokens) {
  return std::min(blocks_of(tokens, kWarps), int64_t{528});
}
__device__ int64_t router_warps() {
  return static_cast<int64_t>(gridDim.x) * kWarps;
}
/// Stores the sum of the losses of a block's warps, which all lanes have.
__device__ void keep_loss(double* parts, double loss) {
  __shared__ double shared[kWarps];
  const double sum = block_sum(lane() == 0 ? loss : 0, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void balance_loss_kernel(double* parts, float* p, const float* load, ScoreRule rule,
                                    double scale, int64_t tokens, int64_t experts) {
  const auto factor = static_cast<float>(scale);
  double loss = 0;
  for (int64_t t = warp_number(); t < tokens; t += router_warps()) {
    float* const row = p + t * experts;
    float scores = 0, weighted = 0;
    for (int64_t e = lane(); e < experts; e += kWarp) {
      scores += row[e];
      weighted += load[e] * row[e];
    }
    const float all = warp_sum(scores);
    const float sum = rule == ScoreRule::kSoftmax ? 1 : all;
    const float mean = warp_sum(weighted) / sum;
    loss += scale * mean;
    for (int64_t e = lane(); e < experts; e += kWarp) {
      const float slope = rule == ScoreRule::kSoftmax ? row[e] : row[e] * (1 - row[e]) / sum;
      row[e] = factor * (load[e] - mean) * slope;
    }
  }
  keep_loss(parts, loss);
}

__global__ void z_loss_kernel(double* parts, float* logits, double scale, int64_t tokens,
                              int64_t experts) {
  double loss = 0;
  for (int64_t t = warp_number(); t < tokens; t += router_warps()) {
    float* const row = logits + t * experts;
    float top = -INFINITY, sum = 0;
    for (int64_t e = lane(); e < experts; e += kWarp) top = max_or_nan(top, row[e]);
    top = warp_max(top);
    for (int64_t e = lane(); e < experts; e += kWarp) sum += expf(row[e] - top);
    sum = warp_sum(sum);
    const double z = top + log(static_cast<double>(sum));
    loss += scale * z * z;
    const auto factor = static_cast<float>(2 * scale * z);
    for (int64_t e = lane(); e < experts; e += kWarp) row[e] = factor * expf(row[e] - top) / sum;
  }
  keep_loss(parts, loss);
}

}  // namespace

template <class T>
void loss_kernels(KernelTable<T>& table) {
  table.cross_entropy = cross_entropy<T>;
}
template void loss_kernels(KernelTable<float>&);
template void loss_kernels(KernelTable<Bf16>&);

void balance_loss(double* loss, float* p, const float* load, ScoreRule rule, double scale,
                  int64_t tokens, int64_t experts, Stream stream) {
  const int64_t blocks = router_blocks(tokens);
  in_blocks(loss, blocks, stream, [&](double* parts) {
    launch(balance_loss_kernel, blocks, kThreads, stream, parts, p, load, rule, scale, tokens,
           experts);
  });
}

void z_loss(double* loss, float* logits, double scale, int64_t tokens, int64_t experts,
            Stream stream) {
  const int64_t blocks = router_blocks(tokens);
  in_blocks(loss, blocks, stream, [&](double* parts) {
    launch(z_loss_kernel, blocks, kThreads, stream, parts, logits, scale, tokens, experts);
  });
}

}  // namespace moe::kernels::cuda
