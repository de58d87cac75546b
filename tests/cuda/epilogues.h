// Products of experts and what follows them, as a body of agree_on_both and its like.
#pragma once

#include <algorithm>

#include "tests/cuda/on_device.h"

namespace moe::test {

using kernels::GemmVariant;

constexpr GemmVariant kVariants[] = {GemmVariant::kBatch, GemmVariant::kStreams};
/// Members of an epilogue.
constexpr int kBias = 1, kAdd = 2, kBeforeGelu = 4, kGeluAt = 8;

/// Rows of each expert; columns, depth; how far all matrices begin from a vector.
struct Sizes {
  std::vector<int64_t> rows;
  int64_t n, k, shift;
};
inline const Sizes kSizes[] = {{{16, 16, 16}, 24, 16, 0},  // padded
                               {{9, 0, 130, 1}, 40, 8, 0},
                               {{5, 7}, 19, 13, 0},  // rows that are no vectors
                               {{6, 6, 6}, 16, 16, 1}};

/// n of -1, 0 and 1: bfloat16 has their small sums, so it does not matter where a kernel rounds.
template <class A>
std::vector<typename A::Stored> small_whole(int64_t n, uint64_t stream) {
  std::vector<typename A::Stored> all;
  for (const int32_t v : random_ints(n, stream, 3)) all.push_back(A::of(v - 1));
  return all;
}

/// c of experts, then before_gelu.
template <class A, class Table>
Results<typename A::Stored> followed(const Table& table, A, GemmVariant variant, const Sizes& s,
                                     int given, bool ta, bool tb) {
  using T = typename A::Stored;
  using W = typename A::Wide;
  int64_t all = 0;
  for (const int64_t rows : s.rows) all += rows;
  const auto experts = static_cast<int64_t>(s.rows.size());
  // Each expert has a place of its own for its rows of a, columns of them where a is transposed.
  const int64_t most = *std::max_element(s.rows.begin(), s.rows.end()), lda = ta ? most : s.k;
  // Before it adds a summand, cublasLt rounds the sum with the bias.
  const bool rounds_between = (given & kBias) != 0 && (given & kAdd) != 0;
  const auto values = [&](int64_t n, uint64_t stream) {
    return rounds_between ? small_whole<A>(n, stream) : A::stored(n, stream);
  };
  const auto a = values(s.shift + experts * most * s.k, 1);
  const auto b = values(s.shift + experts * s.n * s.k, 2);
  const auto add = values(s.shift + all * s.n, 3), at = A::stored(s.shift + all * s.n, 4, 4);
  std::vector<W> bias;  // also exact in bfloat16
  for (const int32_t v : random_ints(experts * s.n, 5, 255))
    bias.push_back(rounds_between ? (v % 9 - 4) / W(4) : (v - 127) / W(64));
  std::vector<T> c(s.shift + all * s.n), before(c);
  std::vector<kernels::Product<T>> products;
  int64_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = s.shift + first * s.n;
    products.push_back({s.rows[e],
                        s.n,
                        s.k,
                        a.data() + s.shift + e * most * s.k,
                        b.data() + s.shift + e * s.n * s.k,
                        c.data() + begin,
                        {.bias = given & kBias ? bias.data() + e * s.n : nullptr,
                         .add = given & kAdd ? add.data() + begin : nullptr,
                         .before_gelu = given & kBeforeGelu ? before.data() + begin : nullptr,
                         .gelu_at = given & kGeluAt ? at.data() + begin : nullptr}});
    first += s.rows[e];
  }
  table.gemm_many(variant, ta, tb, experts, products.data(), W(0.5), lda, tb ? s.k : s.n, W(0), s.n,
                  nullptr);
  return {joined(c, before), {}};
}

}  // namespace moe::test
