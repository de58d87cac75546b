// The primitives against stable sorts over whole rows and columns.
#include "engine/routing/primitives.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "engine/base/errors.h"
#include "tests/routing/fixture.h"

using namespace moe;
using Catch::Matchers::Contains;
using moe::test::tied_scores;
using Ints = std::vector<int32_t>;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// 0 .. values.size() - 1 by value, highest first, stable.
Ints sorted_by(const std::vector<float>& values) {
  Ints order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return order;
}

/// Without those of value -infinity, which cannot be chosen.
Ints ranked_by(const std::vector<float>& values) {
  Ints order = sorted_by(values);
  std::erase_if(order, [&](int32_t i) { return values[static_cast<size_t>(i)] == -kInf; });
  return order;
}

struct Matrix {
  int64_t tokens, experts;
  std::vector<float> scores;

  std::vector<float> row(int64_t t) const {
    return {scores.begin() + t * experts, scores.begin() + (t + 1) * experts};
  }
  std::vector<float> col(int64_t e) const {
    std::vector<float> values;
    for (int64_t t = 0; t < tokens; ++t)
      values.push_back(scores[static_cast<size_t>(t * experts + e)]);
    return values;
  }
  ScoreMatrix view() const { return {scores, experts}; }
};

// Widths around the lane count, values with ties, both signs, zeros of both signs and infinities.
std::vector<Matrix> matrices() {
  std::vector<Matrix> all;
  for (const int64_t experts : {1, 2, 3, 7, 8, 9, 16, 21, 64}) {
    for (const int levels : {1, 2, 5, 1000}) {
      Matrix m{30, experts, tied_scores(30, experts, levels, static_cast<uint64_t>(levels))};
      Rng rng(7);
      for (float& x : m.scores) {
        const int64_t draw = rng.below(8);
        if (draw < 3) x = -x;
        if (draw == 3) x = rng.below(2) ? kInf : -kInf;
      }
      std::fill_n(m.scores.begin(), experts, -kInf);
      all.push_back(std::move(m));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("argmax_rows gives the first of the highest scores") {
  for (const Matrix& m : matrices()) {
    const Ints best = argmax_rows(m.view());
    REQUIRE(static_cast<int64_t>(best.size()) == m.tokens);
    for (int64_t t = 0; t < m.tokens; ++t) {
      const Ints order = ranked_by(m.row(t));
      REQUIRE(best[static_cast<size_t>(t)] == (order.empty() ? -1 : order[0]));
    }
  }
}

TEST_CASE("topk_rows gives the head of every row's stable order") {
  for (const Matrix& m : matrices()) {
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(2, m.experts), m.experts}) {
      const Ints best = topk_rows(m.view(), k);
      REQUIRE(static_cast<int64_t>(best.size()) == m.tokens * k);
      for (int64_t t = 0; t < m.tokens; ++t) {
        Ints order = ranked_by(m.row(t));
        order.resize(static_cast<size_t>(m.experts), -1);
        REQUIRE(std::equal(order.begin(), order.begin() + k, best.begin() + t * k));
      }
    }
  }
}

TEST_CASE("topk_col gives the head of the column's stable order") {
  for (const Matrix& m : matrices()) {
    for (int64_t e = 0; e < m.experts; ++e) {
      const Ints order = ranked_by(m.col(e));
      for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{11}, m.tokens}) {
        const auto found = std::min(n, static_cast<int64_t>(order.size()));
        REQUIRE(topk_col(m.view(), e, n) == Ints(order.begin(), order.begin() + found));
      }
    }
  }
}

TEST_CASE("order_by_score is the stable descending order") {
  for (const Matrix& m : matrices()) REQUIRE(order_by_score(m.scores) == sorted_by(m.scores));
  CHECK(order_by_score({}).empty());
}

TEST_CASE("sum_cols adds in double and lets NaN through") {
  const std::vector<float> scores = {1, 2, 0x1p-40f, kNan, 3, 0.5f};
  const std::vector<double> sums = sum_cols({scores, 2});
  CHECK(sums[0] == 4.0 + 0x1p-40);
  CHECK(sums[1] != sums[1]);
}

TEST_CASE("histogram counts every value, and leaves out those below zero") {
  CHECK(histogram(Ints{2, 0, 2, -1, 2}, 4) == std::vector<int64_t>{1, 0, 3, 0});
  CHECK(histogram({}, 2) == std::vector<int64_t>{0, 0});
}

TEST_CASE("what would rank a NaN names the token that holds it") {
  std::vector<float> scores(40, -kInf);
  scores[2 * 10 + 9] = kNan;
  const std::string message = "gate: scores of token 2 hold a NaN";
  CHECK_THROWS_WITH(argmax_rows({scores, 10}), message);
  CHECK_THROWS_WITH(topk_rows({scores, 10}, 2), message);
  CHECK_THROWS_WITH(topk_col({scores, 10}, 9, 1), message);
  CHECK_NOTHROW(topk_col({scores, 10}, 8, 1));
  CHECK_THROWS_WITH(order_by_score(std::span(scores).subspan(27)), message);
  CHECK_THROWS_AS(argmax_rows({scores, 10}), RunError);
}

TEST_CASE("sizes out of range are refused") {
  const std::vector<float> scores(12);
  CHECK_THROWS_WITH(ScoreMatrix(scores, 5), Contains("12 scores"));
  CHECK_THROWS_WITH(ScoreMatrix(scores, 0), Contains("0 experts"));
  CHECK_THROWS_WITH(topk_rows({scores, 4}, 5), Contains("k = 5"));
  CHECK_THROWS_WITH(topk_rows({scores, 4}, 0), Contains("k = 0"));
  CHECK_THROWS_WITH(topk_col({scores, 4}, 4, 1), Contains("no expert 4"));
  CHECK_THROWS_WITH(topk_col({scores, 4}, 0, 4),
                    Contains("n = 4 must be between 0 and tokens = 3"));
  CHECK_THROWS_WITH(histogram(Ints{3}, 3), Contains("value 3"));
}
