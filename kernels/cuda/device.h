// What all kernels share: launches, and sums and maxima over a warp and a block. Only the .cu files
// in this folder, their headers and tests include it. The .cu files contain no <<<>>> and no
// __CUDACC__, so that nvcc and, with the runtime in tests/cuda/host, a plain C++ compiler can
// compile the same text. The functions of the device table are in device_functions.h. Invariant: no
// sum depends on the order in which threads run. The only atomics are the minimum in finite.cu,
// whose result is the same in any order, and the flags that link.cu shares with a CPU thread.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/pack.h"
#include "kernels/kernels.h"

namespace moe::kernels::cuda {

#ifndef MOE_DYNAMIC_SHARED  // the runtime in tests/cuda/host has its own of these
/// Declares the block's dynamic shared memory as an array.
#define MOE_DYNAMIC_SHARED(T, name) extern __shared__ T name[]
/// 2^v to 2 ulp, in one instruction.
__device__ inline float fast_exp2(float v) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
#endif

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // threads per block, unless a kernel uses another number
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int64_t kMaxGrid = 0x7fffffff;
// Most blocks of striding threads: enough to fill any device, few enough to start fast.
constexpr int64_t kStrideGrid = 4096;

/// Starts `kernel` on `blocks` blocks; does nothing for 0 blocks. A failure is kept by errors.h.
/// Each block gets `shared_bytes` of dynamic shared memory; for more than 48 KB, the caller must
/// have set the kernel's limit before.
template <class... P>
void launch_with_shared(int64_t shared_bytes, void (*kernel)(P...), int64_t blocks, int threads,
                        Stream stream, std::type_identity_t<P>... args) {
  if (blocks == 0) return;
  if (blocks > kMaxGrid)
    return keep_error("cuda: a kernel was to be launched with " + std::to_string(blocks) +
                      " thread blocks; at most 2^31 - 1 are possible");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  worked(cudaLaunchKernelEx(&config, kernel, args...), "launch");
}
template <class... P>
void launch(void (*kernel)(P...), int64_t blocks, int threads, Stream stream,
            std::type_identity_t<P>... args) {
  launch_with_shared(0, kernel, blocks, threads, stream, args...);
}

constexpr int64_t blocks_of(int64_t n, int64_t a_block) {
  return (n + a_block - 1) / a_block;
}
/// Returns the number of blocks for a kernel whose threads stride over n elements.
constexpr int64_t stride_blocks(int64_t n) {
  const int64_t blocks = blocks_of(n, kThreads);
  return blocks < kStrideGrid ? blocks : kStrideGrid;
}

/// Returns whether rows of `cols` numbers that begin at these pointers can be read as 16-byte
/// vectors of N numbers each. A null pointer counts as aligned.
template <int N = 4, class... P>
bool vectorable(int64_t cols, const P*... pointers) {
  return cols % N == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
/// Calls run(n) with the number of elements that a thread handles at once, as a constant: a pack
/// (16 bytes) of T if rows of `cols` numbers at these pointers allow it, otherwise 1.
template <class T, class Run, class... P>
void in_packs(Run run, int64_t cols, const P*... pointers) {
  if (vectorable<kPack<T>>(cols, pointers...)) return run(std::integral_constant<int, kPack<T>>());
  run(std::integral_constant<int, 1>());
}

__device__ inline int64_t thread_number() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t num_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}
__device__ inline int lane() {
  return static_cast<int>(threadIdx.x % kWarp);
}
__device__ inline int warp() {
  return static_cast<int>(threadIdx.x / kWarp);
}

/// The number of this warp in the grid, for blocks of kThreads threads.
__device__ inline int64_t warp_number() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + warp();
}

/// Returns the sum over each group of `lanes` adjacent lanes of a warp, in every lane. All 32 lanes
/// must call it.
template <class T>
__device__ inline T warp_sum(T v, int lanes = kWarp) {
  for (int step = lanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}
/// Returns the larger of a and b, or NaN if one is NaN: a row's maximum must show its NaN.
__device__ inline float max_or_nan(float a, float b) {
  return a > b || isnan(a) ? a : b;
}
__device__ inline float warp_max(float v, int lanes = kWarp) {
  for (int step = lanes / 2; step > 0; step /= 2)
    v = max_or_nan(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}
/// Returns the sum over a block, in every thread. The block must have as many warps as `shared` has
/// elements; `shared` may be used again only after another barrier.
template <class T, int kCount>
__device__ inline T block_sum_once(T v, T (&shared)[kCount]) {
  v = warp_sum(v);
  if (lane() == 0) shared[warp()] = v;
  __syncthreads();
  T sum = shared[0];
  for (int w = 1; w < kCount; ++w) sum += shared[w];
  return sum;
}
/// The same; `shared` may be used again at once.
template <class T, int kCount>
__device__ inline T block_sum(T v, T (&shared)[kCount]) {
  const T sum = block_sum_once(v, shared);
  __syncthreads();
  return sum;
}
template <int kCount>
__device__ inline float block_max(float v, float (&shared)[kCount]) {
  v = warp_max(v);
  if (lane() == 0) shared[warp()] = v;
  __syncthreads();
  float top = shared[0];
  for (int w = 1; w < kCount; ++w) top = max_or_nan(top, shared[w]);
  __syncthreads();
  return top;
}

}  // namespace moe::kernels::cuda
