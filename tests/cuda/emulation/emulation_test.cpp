// The emulation itself: what it computes, and that it shows the faults that it is there for.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "kernels/cuda/device.h"

using Catch::Matchers::Contains;
using namespace moe::kernels::cuda;

namespace {

__global__ void shift(float* out, const float* in, bool wait) {
  __shared__ float all[kThreads];
  all[threadIdx.x] = in[threadIdx.x];
  if (wait) __syncthreads();
  out[threadIdx.x] = all[(threadIdx.x + 1) % kThreads];
}

/// The first wait orders write and read; without the second, the next round overwrites too early.
__global__ void rotate(float* values, int rounds, bool wait) {
  __shared__ float all[kThreads];
  float mine = values[threadIdx.x];
  for (int i = 0; i < rounds; ++i) {
    all[threadIdx.x] = mine;
    __syncthreads();
    mine = all[(threadIdx.x + 1) % kThreads];
    if (wait) __syncthreads();
  }
  values[threadIdx.x] = mine;
}

__global__ void sum_of_numbers(float* out) {
  __shared__ float shared[kWarps];
  const float sum = block_sum(static_cast<float>(threadIdx.x), shared);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void leave_early(float* out) {
  if (threadIdx.x == 7) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void part_ways(float* out) {
  if (threadIdx.x < kWarp) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

std::vector<float> numbers() {
  std::vector<float> v(kThreads);
  for (int i = 0; i < kThreads; ++i) v[static_cast<size_t>(i)] = static_cast<float>(i);
  return v;
}

template <class Run>
size_t results_over_orders(Run run) {
  std::set<std::vector<float>> results;
  for (uint64_t order = 0; order < 4; ++order) {
    emulation::set_order(order);
    std::vector<float> v = run();
    for (float& x : v)
      if (std::isnan(x)) x = -1;  // shared memory before its first write
    results.insert(v);
  }
  return results.size();
}

}  // namespace

TEST_CASE("emulated on the host: a missing barrier between write and read changes the result") {
  const std::vector<float> in = numbers();
  const auto run = [&](bool wait) {
    return results_over_orders([&] {
      std::vector<float> out(kThreads);
      launch(shift, 1, kThreads, nullptr, out.data(), in.data(), wait);
      return out;
    });
  };
  CHECK(run(true) == 1);
  CHECK(run(false) > 1);
}

TEST_CASE("emulated on the host: a missing barrier between read and overwrite shows") {
  const auto run = [](bool wait) {
    return results_over_orders([&] {
      std::vector<float> v = numbers();
      launch(rotate, 1, kThreads, nullptr, v.data(), 3, wait);
      return v;
    });
  };
  CHECK(run(true) == 1);
  CHECK(run(false) > 1);
}

TEST_CASE("emulated on the host: every thread of a block gets the block's sum") {
  std::vector<float> out(3);
  launch(sum_of_numbers, 3, kThreads, nullptr, out.data());
  CHECK(out == std::vector<float>(3, kThreads * (kThreads - 1) / 2.0f));
}

TEST_CASE("emulated on the host: a barrier that a thread never reaches is refused") {
  std::vector<float> out(kThreads);
  CHECK_THROWS_WITH(launch(leave_early, 1, kThreads, nullptr, out.data()),
                    Contains("255 threads wait at"));
}

TEST_CASE("emulated on the host: barriers at two places of the source are no one barrier") {
  std::vector<float> out(kThreads);
  CHECK_THROWS_WITH(launch(part_ways, 1, kThreads, nullptr, out.data()),
                    Contains("threads meet at"));
}

TEST_CASE("emulated on the host: dynamic shared memory beyond 48 KB wants to be allowed") {
  std::vector<float> out(kThreads);
  const std::vector<float> in = numbers();
  const auto error = [&] {
    launch_with_shared(49 << 10, shift, 1, kThreads, nullptr, out.data(), in.data(), true);
    return take_error();
  };
  CHECK(error() == "cuda: launch: invalid argument");
  cudaFuncSetAttribute(shift, cudaFuncAttributeMaxDynamicSharedMemorySize, 49 << 10);
  CHECK(error() == "");
}
