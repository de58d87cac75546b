// Many products in one call, and by many threads.
#include <atomic>
#include <thread>

#include "kernels/cpu/blas_buffers.h"
#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::GemmVariant;

namespace {

constexpr GemmVariant kVariants[] = {GemmVariant::kBatch, GemmVariant::kStreams};

/// Two products with all members of an epilogue that `given` says, and what they are made of.
template <class T>
struct Followed {
  static constexpr int64_t kM = 5, kN = 19, kK = 7, kArea = kM * kN;
  explicit Followed(int given_) : given(given_) {}

  std::vector<T> run(const kernels::KernelTable<T>& table, GemmVariant variant) {
    std::vector<kernels::Product<T>> products;
    for (int64_t i = 0; i < 2; ++i)
      products.push_back({kM,
                          kN,
                          kK,
                          a.data() + i * kM * kK,
                          b.data() + i * kN * kK,
                          c.data() + i * kArea,
                          {.bias = has(1) ? bias.data() + i * kN : nullptr,
                           .add = has(2) ? (has(16) ? c : add).data() + i * kArea : nullptr,
                           .before_gelu = has(4) ? before.data() + i * kArea : nullptr,
                           .gelu_at = has(8) ? at.data() + i * kArea : nullptr}});
    table.gemm_many(variant, false, true, 2, products.data(), T(0.5), kK, kK, T(0), kN, nullptr);
    return joined(c, before);
  }
  /// Of a bit of `given`, which says: bias, add, before_gelu, gelu_at, and that add is c.
  bool has(int bit) const { return (given & bit) != 0; }

  const int given;
  const std::vector<T> a = random_values<T>(2 * kM * kK, 1), b = random_values<T>(2 * kN * kK, 2);
  const std::vector<T> bias = random_values<T>(2 * kN, 3), add = random_values<T>(2 * kArea, 4);
  const std::vector<T> at = random_values<T>(2 * kArea, 5, 4);
  std::vector<T> c = random_values<T>(2 * kArea, 6), before = random_values<T>(2 * kArea, 7);
};

/// All `given` that make sense.
std::vector<int> epilogues() {
  std::vector<int> all;
  for (int given = 0; given < 32; ++given)
    if ((given & 12) != 12 && ((given & 16) == 0 || (given & 2) != 0)) all.push_back(given);
  return all;
}

double gelu(double z) {
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}

}  // namespace

TEST_CASE("many products in one call have the bits of as many gemms, also where some are empty") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    const bool ta = rng.below(2) == 1, tb = rng.below(2) == 1;
    const int64_t count = rng.below(6), most = 13, ld = 15, area = most * ld;
    const float alpha = 1.5F, beta = rng.below(2) == 1 ? 1.0F : 0.0F;
    const auto a = random_values<float>(6 * area, 1), b = random_values<float>(6 * area, 2);
    std::vector<float> want = random_values<float>(6 * area, 3);
    const std::vector<float> before = want;
    std::vector<std::array<int64_t, 4>> sizes;  // m, n, k, and where c is
    for (int64_t i = 0; i < count; ++i) {
      const bool again = i > 0 && rng.below(3) == 0;  // adds to the one before
      sizes.push_back({rng.below(most), rng.below(most), rng.below(most), i});
      if (again) sizes.back() = {sizes[i - 1][0], sizes[i - 1][1], sizes[i][2], sizes[i - 1][3]};
    }
    for (const auto* const table : kernels::runnable_tables()) {
      want = before;
      for (int64_t i = 0; i < count; ++i)
        table->gemm(ta, tb, sizes[i][0], sizes[i][1], sizes[i][2], alpha, a.data() + i * area, ld,
                    b.data() + i * area, ld, beta, want.data() + sizes[i][3] * area, ld, nullptr);
      for (const GemmVariant variant : kVariants) {
        std::vector<float> c = before;
        std::vector<kernels::Product<float>> products;
        for (int64_t i = 0; i < count; ++i)
          products.push_back({sizes[i][0], sizes[i][1], sizes[i][2], a.data() + i * area,
                              b.data() + i * area, c.data() + sizes[i][3] * area});
        table->gemm_many(variant, ta, tb, count, products.data(), alpha, ld, ld, beta, ld, nullptr);
        INFO(table->name << ", seed " << seed);
        CHECK(c == want);
      }
    }
  }
}

TEST_CASE("the reference adds bias and summand to a product and takes GELU or its slope by hand") {
  using One = Followed<double>;
  for (const int given : epilogues()) {
    One one(given);
    const One was(given);
    one.run(kernels::reference_table(), GemmVariant::kBatch);
    for (size_t i = 0; i < one.c.size(); ++i) {
      const size_t row = i / One::kN, product = row / One::kM;
      const size_t column = product * One::kN + i % One::kN;
      double s = 0;
      for (size_t p = 0; p < One::kK; ++p)
        s += 0.5 * one.a[row * One::kK + p] * one.b[column * One::kK + p];
      if (one.has(1)) s += one.bias[column];
      if (one.has(2)) s += one.has(16) ? was.c[i] : one.add[i];
      CHECK(one.before[i] == (one.has(4) ? Approx(s) : Approx(was.before[i])));
      const double step = 1e-5, at = one.at[i];
      if (one.has(4)) s = gelu(s);
      if (one.has(8)) s *= (gelu(at + step) - gelu(at - step)) / (2 * step);
      CHECK(one.c[i] == Approx(s).margin(1e-8));
    }
  }
}

TEST_CASE(
    "what follows a product has the bits of a GEMM onto bias and summand, or of GELU's own bias") {
  using One = Followed<float>;
  constexpr int64_t n = One::kN, k = One::kK;
  for (const auto* const table : kernels::runnable_tables())
    for (const int given : epilogues()) {
      One one(given);
      std::vector<float> sum = one.c, want;
      const std::vector<float> add = one.has(16) ? one.c : one.add, before = one.before;
      const auto bias_at = [&](size_t i) { return one.bias[i / One::kArea * n + i % n]; };
      const bool filled = one.has(2) || (one.has(1) && !one.has(4));
      for (size_t i = 0; i < sum.size(); ++i)
        sum[i] = (one.has(1) && !one.has(4) ? bias_at(i) : 0) + (one.has(2) ? add[i] : 0);
      for (int64_t i = 0; i < 2; ++i)
        table->gemm(false, true, One::kM, n, k, 0.5F, one.a.data() + i * One::kM * k, k,
                    one.b.data() + i * n * k, k, filled ? 1 : 0, sum.data() + i * One::kArea, n,
                    nullptr);
      for (size_t i = 0; i < sum.size() && one.has(1) && one.has(4); ++i) sum[i] += bias_at(i);
      want = sum;
      if (one.has(4)) table->gelu(want.data(), sum.data(), nullptr, 2 * One::kM, n, nullptr);
      if (one.has(8))
        table->gelu_dx(want.data(), sum.data(), one.at.data(), nullptr, 2 * One::kM, n, nullptr);
      INFO(table->name << ", given " << given);
      CHECK(one.run(*table, kVariants[given % 2]) == joined(want, one.has(4) ? sum : before));
    }
}

TEST_CASE("more threads than OpenBLAS has work spaces may compute products at the same time") {
  constexpr int kThreads = 1024, kSize = 512;  // all threads need their work spaces at once
  REQUIRE(kernels::reserve_blas_buffers(kThreads));
  const std::vector<float> one(kSize * kSize, 1);
  std::atomic<int> begun{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<float> c(kSize * kSize);
      ++begun;
      while (begun < kThreads) std::this_thread::yield();
      kernels::fast_table().gemm(false, false, kSize, kSize, kSize, 1, one.data(), kSize,
                                 one.data(), kSize, 0, c.data(), kSize, nullptr);
      if (std::any_of(c.begin(), c.end(), [=](float x) { return x != kSize; })) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
