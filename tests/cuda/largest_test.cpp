// Where the largest number of a row is, emulated on the host, never run on a GPU.
#include <algorithm>

#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;

TEMPLATE_TEST_CASE("emulated on the host: the largest number of each row is found as on the CPU",
                   "", float, kernels::Bf16) {
  using A = Arrays<TestType>;
  const auto less = [](TestType a, TestType b) {
    return kernels::to_float(a) < kernels::to_float(b);
  };
  Rng rng(1);
  for (int64_t round = 0; round < 60; ++round) {
    emulation::set_order(static_cast<uint64_t>(round));
    const int64_t rows = rng.below(20), cols = 1 + rng.below(300);
    auto x = A::stored(rows * cols, static_cast<uint64_t>(round), 1e38);
    // Equal ones, numbers that are none, also first in a row or all of it.
    for (TestType& v : x) {
      const int64_t kind = rng.below(round % 4 == 0 ? 2 : 12);
      if (kind == 0) v = A::of(round % 3 == 0 ? NAN : -INFINITY);
      if (kind == 1) v = A::of(round % 5 == 0 ? NAN : 2e38f);
    }
    std::vector<int32_t> column(static_cast<size_t>(rows), -7);
    kernels::cuda::largest_columns(column.data(), x.data(), rows, cols, cols, nullptr);
    REQUIRE(kernels::cuda::take_error() == "");
    for (int64_t r = 0; r < rows; ++r) {
      INFO("row " << r << " of " << cols << " columns");
      const auto row = x.begin() + r * cols;
      REQUIRE(column[static_cast<size_t>(r)] == std::max_element(row, row + cols, less) - row);
    }
  }
}
