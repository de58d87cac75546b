// That tests on the emulation can fail: what a kernel leaves out in ordering its threads changes
// its result in some order, and conflicts of its loads over banks of shared memory are counted.
// What the emulation computes is tested with the kernels, against the double reference.
#include <set>

#include "kernels/cuda/attention/mma.h"
#include "kernels/cuda/device.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::kernels::cuda;
using kernels::Bf16;

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

/// Each thread copies four numbers to shared memory and reads its neighbour's first.
__global__ void copy_and_shift(float* out, const float* in, bool wait) {
  auto* all = reinterpret_cast<float*>(dynamic_shared());
  start_copy<16>(all + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
  if (wait) finish_copies();
  __syncthreads();
  out[threadIdx.x] = all[(threadIdx.x + 1) % kThreads * 4];
  __syncthreads();
  finish_copies();
}

__global__ void load_rows(int row_stride) {
  unsigned to[4];
  load_matrices(to, dynamic_shared() + lane() * row_stride);
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

uint64_t bank_conflicts(int row_stride) {
  emulation::take_bank_conflicts();
  launch_with_shared(int64_t{kWarp} * row_stride * 2, load_rows, 1, kWarp, nullptr, row_stride);
  return emulation::take_bank_conflicts();
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

TEST_CASE("emulated on the host: a copy that nobody waits for lands in some orders only") {
  alignas(16) static float in[4 * kThreads];
  for (int i = 0; i < 4 * kThreads; ++i) in[i] = static_cast<float>(i);
  const auto run = [&](bool wait) {
    return results_over_orders([&] {
      std::vector<float> out(kThreads);
      launch_with_shared(16 * kThreads, copy_and_shift, 1, kThreads, nullptr, out.data(), in, wait);
      return out;
    });
  };
  CHECK(run(true) == 1);
  CHECK(run(false) > 1);
}

TEST_CASE(
    "emulated on the host: attention of bfloat16 loads its fragments without bank conflicts") {
  CHECK(bank_conflicts(8) == 0);
  CHECK(bank_conflicts(64) == 4);  // one for each matrix
  for (const int64_t head_dim : {32, 64, 96, 128}) {
    const kernels::AttentionShape s = {1, 40, 1, head_dim};
    const auto n = static_cast<size_t>(s.seq * head_dim);
    std::vector<Bf16> qkv(3 * n), ctx(n), dqkv(3 * n);
    std::vector<float> lse(static_cast<size_t>(s.seq)), work(lse.size());
    emulation::take_bank_conflicts();
    test::device_mixed().attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, work.data(),
                                   nullptr);
    test::device_mixed().attention_dx(out_qkv(dqkv.data(), s), ctx.data(), ctx.data(),
                                      in_qkv(qkv.data(), s), lse.data(), s, work.data(), nullptr);
    CHECK(emulation::take_bank_conflicts() == 0);
  }
}
