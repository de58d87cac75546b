// What follows the products of experts, in every variant: bias, summand, GELU and its slope.
#include "tests/cuda/epilogues.h"

using namespace moe;
using namespace moe::test;

/// In bfloat16 a kernel may round what it gives to the next one: twice, numbers below 8.
constexpr double kTwoRoundings = 2 * 8 * 0x1p-9;

TEST_CASE("what follows experts' products agrees with the reference in every variant", "[gemm]") {
  for (const Sizes& s : kSizes)
    for (const GemmVariant variant : kVariants)
      for (const int gelu : {0, kBeforeGelu, kGeluAt})
        for (const int filled : {0, kBias, kAdd, kBias | kAdd})
          for (const int transposed : {0, 1, 2, 3}) {
            const bool ta = transposed & 1, tb = transposed & 2;
            if ((ta || !tb) && filled != kBias) continue;  // the others with x w^T alone
            INFO("sizes " << &s - kSizes << ", variant " << static_cast<int>(variant) << ", given "
                          << (gelu | filled) << ", transposed " << transposed);
            const auto body = [&](const auto& k, auto arrays) {
              return followed(k, arrays, variant, s, gelu | filled, ta, tb);
            };
            agree_on_device(1e-5, [&](const auto& k, auto zero) {
              return body(k, Arrays<decltype(zero)>()).stored;
            });
            agree_mixed(kTwoRoundings, body);
          }
}

TEST_CASE("a summand may be the result, and a product of no depth leaves what is added", "[gemm]") {
  for (const int64_t k : {8, 0})
    agree_on_both(1e-6, [&](const auto& table, auto arrays) {
      using A = decltype(arrays);
      using T = typename A::Stored;
      using W = typename A::Wide;
      const auto a = small_whole<A>(4 * 8, 1), b = small_whole<A>(16 * 8, 2);
      auto c = small_whole<A>(4 * 16, 3);
      const std::vector<W> bias(16, W(0.25));
      const kernels::Product<T> product = {
          4, 16, k, a.data(), b.data(), c.data(), {.bias = bias.data(), .add = c.data()}};
      table.gemm_many(GemmVariant::kBatch, false, true, 1, &product, W(1), 8, 8, W(0), 16, nullptr);
      return Results<T>{c, {}};
    });
}
