#include "engine/dispatch/rows.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/dispatch/law.h"
#include "tests/dispatch/fixture.h"

namespace moe::dispatch {
namespace {

std::vector<int64_t> transposed(const std::vector<int64_t>& matrix, int64_t n) {
  std::vector<int64_t> other(matrix.size());
  for (size_t i = 0; i < matrix.size(); ++i) {
    const auto size = static_cast<size_t>(n);
    other[i % size * size + i / size] = matrix[i];
  }
  return other;
}

// Runs f(exchange, choices, named route) for random ones.
template <class F>
void for_random(F&& f) {
  Rng rng(5);
  for (int i = 0; i < 60; ++i) {
    const Exchange x = random_exchange(rng);
    const Choices choices = random_choices(x, rng, true);
    for (const Named& one : known_routes(x)) {
      INFO(one.name << ", " << x.ranks << " ranks in nodes of " << x.ranks_per_node);
      check(one.route, x);
      check(one.route, x, choices);
      f(x, choices, one);
    }
  }
}

// The cost of sending along a path does not depend on the direction, so a route whose sums are its
// deduplication returns what it sent; a ring goes on.
TEST_CASE("rows return as they came, except where fewer are added or a ring goes on") {
  for_random([](const Exchange& x, const Choices& choices, const Named& one) {
    const LinkRows there = rows_on(one.route, x, choices, Way::kDispatch);
    const LinkRows back = rows_on(one.route, x, choices, Way::kCombine);
    CHECK(there.local == back.local);
    if (std::string_view(one.name) == "node, one sum") {
      CHECK(ports_of(back.nic, x.ranks).total >= ports_of(there.nic, x.ranks).total);
      CHECK(back.nvlink == transposed(there.nvlink, x.ranks));
    } else if (std::string_view(one.name) == "ring") {
      CHECK(back.nvlink == there.nvlink);
      CHECK(back.nic == there.nic);
    } else {
      CHECK(back.nvlink == transposed(there.nvlink, x.ranks));
      CHECK(back.nic == transposed(there.nic, x.ranks));
    }
  });
}

TEST_CASE(
    "rows that are choices follow from their counts, and the hops of a route are all its rows") {
  for_random([](const Exchange& x, const Choices& choices, const Named& one) {
    std::vector<int64_t> counts(static_cast<size_t>(x.ranks * x.ranks));
    for (int64_t rank = 0; rank < x.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      for (int64_t t = choices.first[r]; t < choices.first[r + 1]; ++t) {
        for (const int32_t e : choices.of(t, x.topk)) {
          if (e >= 0) ++counts[static_cast<size_t>(rank * x.ranks + x.rank_of(e))];
        }
      }
    }
    for (const Way way : {Way::kDispatch, Way::kCombine}) {
      const std::vector<std::vector<int64_t>> hops = hop_rows(one.route, x, choices, way);
      int64_t moved = 0;
      for (size_t hop = 0; hop < hops.size(); ++hop) {
        for (const int64_t rows : hops[hop]) moved += rows;
        if (one.route.shares()) continue;
        CHECK(hop_rows(one.route, x, counts, way, static_cast<int64_t>(hop)) == hops[hop]);
      }
      CHECK(moved == rows_on(one.route, x, choices, way).moved);
    }
  });
}

TEST_CASE("rows by rank and node are those of distinct ranks and nodes") {
  for_random([](const Exchange& x, const Choices& choices, const Named& one) {
    const ExpertRows rows = expert_rows(x, choices);
    const LinkRows on = rows_on(one.route, x, choices, Way::kDispatch);
    const int64_t nic = ports_of(on.nic, x.ranks).total;
    const int64_t nvlink = ports_of(on.nvlink, x.ranks).total;
    const std::string_view name = one.name;
    CHECK(rows.choices >= rows.rank_rows);
    CHECK(rows.rank_rows >= rows.node_rows);
    if (x.topk == 1) CHECK(rows.choices == rows.node_rows);
    if (name == "choice") CHECK(nic + nvlink + on.local == rows.choices);
    if (name == "rank") CHECK(nic + nvlink + on.local == rows.rank_rows);
    if (name.substr(0, 4) == "node") {
      CHECK(nic == rows.remote_node_rows);
      CHECK(nvlink + on.local == rows.rank_rows);
    }
    if (name.substr(0, 5) == "intra" || name.substr(0, 5) == "inter") {
      // Every choice crosses nodes at most once, and each hop sees all of them.
      CHECK(on.moved == 2 * rows.choices);
      CHECK(nic ==
            ports_of(rows_on(known_routes(x)[0].route, x, choices, Way::kDispatch).nic, x.ranks)
                .total);
    }
    if (one.route.to_all) {
      CHECK(nic + nvlink == choices.tokens() * (x.ranks - 1));
      CHECK(on.local == choices.tokens());
    }
  });
}

TEST_CASE("without NVLink or in nodes of one rank all rows take NICs") {
  for_random([](const Exchange& x, const Choices& choices, Named one) {
    one.route.nvlink = x.ranks_per_node == 1;
    const LinkRows on = rows_on(one.route, x, choices, Way::kDispatch);
    CHECK(ports_of(on.nvlink, x.ranks).max == 0);
  });
}

TEST_CASE("padded to a capacity, every pair of ranks exchanges as many rows") {
  Exchange x{.ranks = 4, .ranks_per_node = 2, .experts = 8, .topk = 2, .hidden = 128};
  Rng rng(1);
  const Choices choices = random_choices(x, rng, false);
  Route route = known_routes(x)[0].route;
  route.capacity = 6;
  const LinkRows on = rows_on(route, x, choices, Way::kDispatch);
  CHECK(on.nic[0 * 4 + 2] == 12);
  CHECK(on.nvlink[2 * 4 + 3] == 12);
  CHECK(on.local == 48);
  route.capacity = 1;
  const Choices both{{0, 2, 2, 2, 2}, {0, 1, 0, 2}};
  CHECK_THROWS_WITH(check(route, x, both), Catch::Contains("capacity: rank 1 has more than 1"));
}

// D(g) = g (1 - C(E - E/g, k) / C(E, k)): the expected number of g groups that k distinct experts
// reach.
TEST_CASE("drawn choices reach as many ranks and nodes as the closed form says") {
  const auto distinct = [](double g, double E, double k) {
    const auto ways = [](double n, double of) {
      return std::lgamma(n + 1) - std::lgamma(of + 1) - std::lgamma(n - of + 1);
    };
    return g * (1 - (E - E / g < k ? 0 : std::exp(ways(E - E / g, k) - ways(E, k))));
  };
  for (const auto& [ranks, experts, k] : {std::tuple(16, 64, 4), {32, 128, 8}, {64, 256, 8}}) {
    const Exchange x{
        .ranks = ranks, .ranks_per_node = 8, .experts = experts, .topk = k, .hidden = 128};
    const Route route = known_routes(x)[2].route;
    const TokenRows rows = token_rows(route, x, sampled_choices(x), Way::kDispatch);
    const double nodes = distinct(ranks / 8.0, experts, k), on = distinct(ranks, experts, k);
    CHECK(rows.received == Approx(on).epsilon(0.01));
    CHECK(rows.moved == Approx(on + nodes).epsilon(0.01));
    CHECK(rows.nic == Approx(nodes * (1 - 8.0 / ranks)).epsilon(0.01));
    CHECK(rows.nvlink == Approx(on * 7 / 8).epsilon(0.01));
  }
}

// The mean of 3.98 node rows and 7.47 rank rows was simulated apart from this program: nodes chosen
// by their best expert are not uniform (closed form: 3.63).
TEST_CASE("tokens that are limited to their best nodes reach nearly all of these") {
  Exchange x{.ranks = 64, .ranks_per_node = 8, .experts = 256, .topk = 8, .hidden = 128};
  x.groups = 8;
  x.top_groups = 4;
  const TokenRows rows =
      token_rows(known_routes(x)[2].route, x, sampled_choices(x), Way::kDispatch);
  CHECK(rows.moved - rows.received == Approx(3.983).epsilon(0.01));
  CHECK(rows.received == Approx(7.469).epsilon(0.01));
}

}  // namespace
}  // namespace moe::dispatch
