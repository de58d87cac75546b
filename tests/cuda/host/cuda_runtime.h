// Stands in for the CUDA runtime where a test compiles kernels/cuda for the host. A launch runs its
// blocks one after another, each thread of a block as a fiber of its own that runs until it must
// wait; the order of blocks and threads follows a seed. Shared memory is filled with NaN before
// each block. Strict: a barrier or a warp operation wants all threads at one place of the source,
// and dynamic shared memory beyond 48 KB wants to have been allowed. The device's clock moves on
// only when it is read or slept by. What the host calls is in tests/cuda/emulation/host_calls.h.
// It finds wrong indices, wrong sums and missing synchronisation between fibers. It is not a GPU:
// no real concurrency, no limits of registers, no memory model, and says nothing about speed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/cuda/emulation/host_calls.h"

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// A section of its own, so that the emulation finds it all; kernels have internal linkage.
#define __shared__ static __attribute__((section("moe_shared_memory")))
#define MOE_DYNAMIC_SHARED(T, name) T* const name = reinterpret_cast<T*>(emulation::dynamic_shared)

struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
// Also for numbers of other types, as nvcc has it.
struct alignas(8) [[gnu::may_alias]] uint2 {
  unsigned x, y;
};
struct alignas(16) [[gnu::may_alias]] uint4 {
  unsigned x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline void __stcs(uint4* at, uint4 v) {
  *at = v;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float rsqrtf(float v) {
  return 1 / std::sqrt(v);
}
inline float fast_exp2(float v) {
  return std::exp2(v);
}
inline double cospi(double x) {
  return std::cos(3.14159265358979323846 * std::remainder(x, 2.0));
}
inline double sinpi(double x) {
  return std::sin(3.14159265358979323846 * std::remainder(x, 2.0));
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulation {

/// The order in which blocks and threads run: 0 ascending, 1 descending, others shuffled.
void set_order(uint64_t seed);
/// Runs body once per thread. Throws std::runtime_error naming the place where threads wait for
/// ones that come to another place or to none.
void run(dim3 grid, dim3 block, const std::function<void()>& body, size_t dynamic_bytes = 0);
inline char* dynamic_shared = nullptr;
/// So far.
uint64_t num_launches();
void meet_block(const char* file, int line);
/// Waits for the other lanes; returns what each handed in.
const uint64_t* meet_warp(uint64_t word, const char* file, int line);
/// Nanoseconds, more by kTickNs each time.
uint64_t read_clock();
/// The clock goes on by so much.
void pass_time(uint64_t ns);
constexpr uint64_t kTickNs = 100;
/// Work makes the clock go on by what it took here, so that larger work takes longer.
inline bool work_takes_time = false;
/// Is told each time that is read, before the reader goes on; empty: nobody.
void watch_clock(std::function<void(uint64_t)> watcher);
/// Dynamic shared memory that a kernel may ask for.
void allow_shared(const void* kernel, size_t bytes);
size_t allowed_shared(const void* kernel);

template <class T>
uint64_t to_bits(T v) {
  static_assert(sizeof v <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof v);
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

}  // namespace emulation

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute, int bytes) {
  if (bytes > 227 << 10) return emulation::fail(cudaErrorInvalidValue);
  emulation::allow_shared(reinterpret_cast<const void*>(kernel), static_cast<size_t>(bytes));
  return cudaSuccess;
}
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... args) {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (config->dynamicSmemBytes > emulation::allowed_shared(reinterpret_cast<const void*>(kernel)))
    return emulation::fail(cudaErrorInvalidValue);
  emulation::give(config->stream, [=, c = *config] {
    const auto body = [&] { kernel(args...); };
    emulation::run(c.gridDim, c.blockDim, body, c.dynamicSmemBytes);
  });
  return cudaSuccess;
}

#define MOE_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
inline void __syncthreads(MOE_HERE) {
  emulation::meet_block(file, line);
}
inline void __syncwarp(unsigned = ~0u, MOE_HERE) {
  emulation::meet_warp(0, file, line);
}
template <class T>
T __shfl_sync(unsigned, T v, int from, MOE_HERE) {
  return emulation::from_bits<T>(emulation::meet_warp(emulation::to_bits(v), file, line)[from]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int flip, MOE_HERE) {
  return __shfl_sync(mask, v, static_cast<int>(threadIdx.x % 32) ^ flip, file, line);
}
template <class T>
unsigned __match_any_sync(unsigned, T v, MOE_HERE) {
  const uint64_t* all = emulation::meet_warp(emulation::to_bits(v), file, line);
  unsigned equal = 0;
  for (int i = 0; i < 32; ++i) equal |= unsigned{all[i] == emulation::to_bits(v)} << i;
  return equal;
}
inline unsigned __ballot_sync(unsigned, int v, MOE_HERE) {
  const uint64_t* all = emulation::meet_warp(v != 0, file, line);
  unsigned set = 0;
  for (int i = 0; i < 32; ++i) set |= static_cast<unsigned>(all[i]) << i;
  return set;
}
#undef MOE_HERE
/// The device's clock goes on, whoever watches it is told, and other threads of the host may run.
inline void __nanosleep(unsigned ns) {
  emulation::pass_time(ns);
  emulation::read_clock();
  std::this_thread::yield();
}
template <class T>
T atomicMin(T* at, T value) {
  const T before = *at;
  if (value < before) *at = value;
  return before;
}
inline unsigned __float_as_uint(float v) {
  return static_cast<unsigned>(emulation::to_bits(v));
}
inline float __uint_as_float(unsigned v) {
  return emulation::from_bits<float>(v);
}
inline int __popc(unsigned v) {
  return __builtin_popcount(v);
}
inline int __ffs(int v) {
  return __builtin_ffs(v);
}
using std::isfinite;
using std::isnan;
