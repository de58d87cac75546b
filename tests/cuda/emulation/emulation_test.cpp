// That tests on the emulation can fail: what a kernel leaves out in ordering its threads changes
// its result in some order. What the emulation computes is tested with the kernels, against the
// double reference.
#include <set>

#include "kernels/cuda/device.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
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

std::vector<float> numbers(int n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) v[static_cast<size_t>(i)] = static_cast<float>(i);
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
  const std::vector<float> in = numbers(kThreads);
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
      std::vector<float> v = numbers(kThreads);
      launch(rotate, 1, kThreads, nullptr, v.data(), 3, wait);
      return v;
    });
  };
  CHECK(run(true) == 1);
  CHECK(run(false) > 1);
}
