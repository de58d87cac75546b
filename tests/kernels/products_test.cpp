// Many products in one call.
#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::ProductsWay;

namespace {

constexpr ProductsWay kWays[] = {ProductsWay::kBatch, ProductsWay::kStreams, ProductsWay::kGrouped,
                                 ProductsWay::kEach};

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
      for (const ProductsWay way : kWays) {
        std::vector<float> c = before;
        std::vector<kernels::Product<float>> products;
        for (int64_t i = 0; i < count; ++i)
          products.push_back({sizes[i][0], sizes[i][1], sizes[i][2], a.data() + i * area,
                              b.data() + i * area, c.data() + sizes[i][3] * area});
        table->gemm_many(way, ta, tb, count, products.data(), alpha, ld, ld, beta, ld, nullptr);
        INFO(table->name << ", seed " << seed);
        CHECK(c == want);
      }
    }
  }
}
