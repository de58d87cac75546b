// Where the first NaN or infinity is, emulated on the host, never run on a GPU.
#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;

namespace {

/// The first of x by the device's function, or `first` where that is lower.
int64_t noted(int64_t first, kernels::EitherIn x, int64_t n) {
  kernels::cuda::note_nonfinite(&first, x, n, nullptr);
  REQUIRE(kernels::cuda::take_error() == "");
  return first;
}

template <class T>
int64_t first_of(const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    if (!std::isfinite(kernels::to_float(x[i]))) return i;
  return -1;
}

}  // namespace

TEMPLATE_TEST_CASE("emulated on the host: the first NaN or infinity is found wherever it stands",
                   "", float, kernels::Bf16) {
  using A = Arrays<TestType>;
  Rng rng(1);
  for (int64_t round = 0; round < 200; ++round) {
    emulation::set_order(static_cast<uint64_t>(round));
    const int64_t n = rng.below(3000), shift = rng.below(9);  // also rows that begin off a vector
    auto all = A::stored(n + shift, static_cast<uint64_t>(round), 1e38);
    for (int64_t bad = rng.below(4); bad > 0 && n > 0; --bad)
      all[static_cast<size_t>(shift + rng.below(n))] = A::of(bad % 2 ? NAN : -INFINITY);
    const TestType* x = all.data() + shift;
    INFO(n << " numbers, " << shift << " off");
    REQUIRE(noted(-1, x, n) == first_of(x, n));
  }
}

TEST_CASE("emulated on the host: of several tensors and many bad numbers the first stays") {
  std::vector<float> x(40000, NAN);
  CHECK(noted(-1, x.data(), 40000) == 0);
  CHECK(noted(17, x.data() + 1, 39999) == 0);
  x[0] = x[1] = 1;
  CHECK(noted(1, x.data(), 40000) == 1);
  CHECK(noted(-1, x.data(), 40000) == 2);
  CHECK(noted(5, x.data(), 0) == 5);
}
