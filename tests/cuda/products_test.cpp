// The products of experts, in every variant, for loads of every kind.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::GemmVariant;

namespace {

constexpr int64_t kExperts = 5, kSources = 2, kCapacity = 9, kIn = 24, kOut = 40;
constexpr int64_t kRows = kSources * kCapacity;  // of an expert

/// Rows in use, by expert and source; none: all, as one run per expert.
using Counts = std::vector<int64_t>;

const Counts kLoads[] = {{},                              // padded
                         {3, 9, 0, 1, 9, 9, 5, 0, 2, 8},  // ragged
                         {0, 0, 9, 9, 0, 0, 0, 0, 0, 0},  // one expert has all
                         {0, 0, 0, 0, 0, 0, 0, 7, 0, 0},
                         {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}};

/// f(expert, first row, rows), also for runs of no rows.
template <class F>
void each_run(const Counts& counts, F f) {
  for (int64_t e = 0; e < kExperts; ++e) {
    if (counts.empty()) f(e, e * kRows, kRows);
    for (int64_t s = 0; s < kSources && !counts.empty(); ++s)
      f(e, e * kRows + s * kCapacity, counts[static_cast<size_t>(e * kSources + s)]);
  }
}

/// y = x w^T, dx = dy w and dw += dy^T x, the latter run by run.
template <class T>
std::vector<T> products_of_experts(const kernels::KernelTable<T>& table, GemmVariant variant,
                                   const Counts& counts) {
  const auto x = random_values<T>(kExperts * kRows * kIn, 1);
  const auto w = random_values<T>(kExperts * kOut * kIn, 2);
  const auto dy = random_values<T>(kExperts * kRows * kOut, 3);
  auto y = random_values<T>(kExperts * kRows * kOut, 4), dw = random_values<T>(w.size(), 5);
  auto dx = random_values<T>(x.size(), 6);
  std::vector<kernels::Product<T>> of_y, of_dx, of_dw;
  each_run(counts, [&](int64_t e, int64_t first, int64_t rows) {
    const T *const xs = x.data() + first * kIn, *const dys = dy.data() + first * kOut;
    const T* const we = w.data() + e * kOut * kIn;
    of_y.push_back({rows, kOut, kIn, xs, we, y.data() + first * kOut});
    of_dx.push_back({rows, kIn, kOut, dys, we, dx.data() + first * kIn});
    if (rows > 0) of_dw.push_back({kOut, kIn, rows, dys, xs, dw.data() + e * kOut * kIn});
  });
  const auto count = [](const auto& products) { return static_cast<int64_t>(products.size()); };
  table.gemm_many(variant, false, true, count(of_y), of_y.data(), T(1), kIn, kIn, T(0), kOut,
                  nullptr);
  table.gemm_many(variant, false, false, count(of_dx), of_dx.data(), T(0.5), kOut, kIn, T(1), kIn,
                  nullptr);
  table.gemm_many(variant, true, false, count(of_dw), of_dw.data(), T(1), kOut, kIn, T(1), kIn,
                  nullptr);
  return joined(joined(y, dx), dw);
}

}  // namespace

TEST_CASE("experts' products agree with the reference in every variant and for every load",
          "[gemm]") {
  for (const auto variant : {GemmVariant::kBatch, GemmVariant::kStreams})
    for (const Counts& counts : kLoads) {
      INFO("variant " << static_cast<int>(variant) << ", load " << &counts - kLoads);
      agree_on_device(1e-5, [&](const auto& table, auto zero) {
        return products_of_experts<decltype(zero)>(table, variant, counts);
      });
    }
}

TEST_CASE("products without depth scale their sums in every variant", "[gemm]") {
  for (const auto variant : {GemmVariant::kBatch, GemmVariant::kStreams})
    agree_on_device(1e-6, [&](const auto& table, auto zero) {
      using T = decltype(zero);
      const auto a = random_values<T>(64, 1), b = random_values<T>(64, 2);
      auto c = random_values<T>(64, 3);
      const std::vector<kernels::Product<T>> products = {
          {4, 4, 0, a.data(), b.data(), c.data()},
          {4, 4, 8, a.data(), b.data(), c.data() + 16},
          {4, 4, 0, a.data() + 32, b.data() + 32, c.data() + 32}};
      table.gemm_many(variant, false, true, 3, products.data(), T(1), 8, 8, T(0.5), 4, nullptr);
      return c;
    });
}
