// Runs one body on the double reference and on the CUDA kernels as the host emulates them, in
// several orders of their threads. Nothing here runs on a GPU.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/errors.h"
#include "kernels/cuda/table.h"
#include "tests/kernels/compare.h"

namespace moe::test {

/// Ascending, descending, and a shuffle.
constexpr uint64_t kOrders = 3;

/// body(table, T{}) -> vector<T>. The emulated result is within `tolerance` of the reference's and
/// has the same bits whatever the order of threads and blocks.
template <class Body>
void agree_emulated(double tolerance, Body body) {
  const std::vector<double> want = body(kernels::reference_table(), double{});
  std::vector<float> first;
  for (uint64_t order = 0; order < kOrders; ++order) {
    INFO("order of threads " << order);
    emulation::set_order(order);
    const std::vector<float> got = body(kernels::cuda::table(), float{});
    REQUIRE(kernels::cuda::take_error() == "");
    if (order == 0) {
      first = got;
      CHECK(worst_error(got, want) <= tolerance);
    } else {
      CHECK(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace moe::test
