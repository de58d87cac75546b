// Experts' products of operands that are bfloat16 or float32, as a table of mixed types has them,
// beside the double reference of what they are rounded to. On the host's emulation.
#include <cublas_v2.h>

#include "kernels/cuda/functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;
using kernels::Bf16;
using kernels::GemmVariant;

namespace {

constexpr GemmVariant kVariants[] = {GemmVariant::kBatch, GemmVariant::kStreams};
constexpr int64_t kExperts = 4, kRows = 6, kIn = 16, kOut = 24;

/// Numbers in both types, and as they are multiplied.
struct Numbers {
  Numbers(int64_t n, uint64_t stream) : wide(random_values<float>(n, stream)) {
    for (const float v : wide) {
      narrow.push_back(kernels::to_bf16(v));
      rounded.push_back(kernels::to_float(narrow.back()));
    }
  }
  kernels::EitherIn in(bool as_wide, int64_t at) const {
    if (as_wide) return wide.data() + at;
    return narrow.data() + at;
  }
  std::vector<float> wide;
  std::vector<Bf16> narrow;
  std::vector<double> rounded;
};

/// y = 0.5 x w^T + y of experts with rows[e] rows, or with `sum` dw = 0.5 dy^T x + dw.
struct Case {
  std::vector<int64_t> rows;
  bool sum, wide_a, wide_b, wide_c;

  void run(GemmVariant variant, double tolerance) const {
    const Numbers a(kExperts * kRows * (sum ? kOut : kIn), 1);
    const Numbers b(kExperts * (sum ? kRows : kOut) * kIn, 2);
    Numbers c(kExperts * (sum ? kIn : kRows) * kOut, 3);
    std::vector<double> want =
        wide_c ? std::vector<double>(c.wide.begin(), c.wide.end()) : c.rounded;
    std::vector<kernels::Product<Bf16>> products;
    for (int64_t e = 0; e < kExperts; ++e) {
      const auto n = rows[static_cast<size_t>(e)];
      const int64_t m = sum ? kOut : n, cols = sum ? kIn : kOut, k = sum ? n : kIn;
      const int64_t at_a = e * kRows * (sum ? kOut : kIn);
      const int64_t at_b = e * (sum ? kRows : kOut) * kIn;
      const int64_t at_c = e * (sum ? kIn : kRows) * kOut;
      const kernels::EitherOut to = wide_c ? kernels::EitherOut(c.wide.data() + at_c)
                                           : kernels::EitherOut(c.narrow.data() + at_c);
      products.push_back({m, cols, k, a.in(wide_a, at_a), b.in(wide_b, at_b), to});
      kernels::reference_table().gemm(sum, !sum, m, cols, k, 0.5, a.rounded.data() + at_a, lda(),
                                      b.rounded.data() + at_b, kIn, 1, want.data() + at_c, ldc(),
                                      nullptr);
    }
    emulation::cublas_calls = {};
    kernels::cuda::gemm_many_mixed(variant, sum, !sum, kExperts, products.data(), 0.5F, lda(), kIn,
                                   1, ldc(), nullptr);
    REQUIRE(kernels::cuda::take_error() == "");
    std::vector<float> got = c.wide;
    for (size_t i = 0; i < got.size() && !wide_c; ++i) got[i] = kernels::to_float(c.narrow[i]);
    CHECK(relative_l2(got, want) <= tolerance);
  }
  int64_t lda() const { return sum ? kOut : kIn; }
  int64_t ldc() const { return sum ? kIn : kOut; }
};

const std::vector<int64_t> kLoads[] = {{6, 6, 6, 6}, {1, 6, 0, 3}, {0, 6, 0, 0}, {0, 0, 0, 0}};

}  // namespace

TEST_CASE("mixed products agree with the reference of rounded operands, whatever is wide") {
  for (const GemmVariant variant : kVariants)
    for (const auto& rows : kLoads)
      for (int types = 0; types < 8; ++types)
        for (const bool sum : {false, true}) {
          const Case one = {rows, sum, (types & 1) != 0, (types & 2) != 0, (types & 4) != 0};
          INFO("variant " << static_cast<int>(variant) << ", load " << &rows - kLoads << ", types "
                          << types << ", sum " << sum);
          one.run(variant, one.wide_c ? 1e-5 : 4e-3);
        }
}

TEST_CASE("mixed products of equal experts are one strided call after one cast of all weights") {
  const uint64_t launches = emulation::num_launches();
  Case{kLoads[0], false, false, true, false}.run(GemmVariant::kBatch, 4e-3);
  CHECK((emulation::cublas_calls.batched == 1 && emulation::cublas_calls.single == 0));
  CHECK(emulation::cublas_used.math == CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  CHECK(emulation::num_launches() == launches + 1);
}

TEST_CASE("mixed products side by side are single calls on four streams, ragged or not") {
  Case{kLoads[1], false, false, true, false}.run(GemmVariant::kStreams, 4e-3);
  CHECK(emulation::cublas_calls.batched == 0);
  Case{kLoads[0], true, false, false, true}.run(GemmVariant::kStreams, 1e-5);
  CHECK((emulation::cublas_calls.batched == 0 && emulation::cublas_calls.single == 4));
  CHECK(emulation::cublas_calls.streams.size() == 4);
}

TEST_CASE("runs of one expert share its rounded weights") {
  const Numbers x(4 * 8, 1), w(8 * 8, 2);
  std::vector<float> y(4 * 8);
  std::vector<kernels::Product<Bf16>> products;
  for (int64_t run = 0; run < 4; ++run)
    products.push_back({1, 8, 8, x.in(false, 8 * run), w.in(true, 0), y.data() + 8 * run});
  const uint64_t launches = emulation::num_launches();
  kernels::cuda::gemm_many_mixed(GemmVariant::kStreams, false, true, 4, products.data(), 1, 8, 8, 0,
                                 8, nullptr);
  CHECK(emulation::num_launches() == launches + 1);
  std::vector<double> want(y.size());
  kernels::reference_table().gemm(false, true, 4, 8, 8, 1, x.rounded.data(), 8, w.rounded.data(), 8,
                                  0, want.data(), 8, nullptr);
  CHECK(relative_l2(y, want) < 1e-5);
  CHECK(kernels::cuda::take_error() == "");
}
