// Groups of experts: the limit against a search token by token, and the choices and weights of the
// routers of transformers.
#include "engine/routing/expert_groups.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/routing/primitives.h"
#include "tests/routing/fixture.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// How many groups are better than group g of the row.
int64_t groups_before(const ExpertGroups& rule, const std::vector<float>& row, int64_t g) {
  const int64_t size = static_cast<int64_t>(row.size()) / rule.groups;
  std::vector<float> scores;
  for (int64_t i = 0; i < rule.groups; ++i) {
    std::vector<float> group(row.begin() + i * size, row.begin() + (i + 1) * size);
    std::sort(group.rbegin(), group.rend());
    scores.push_back(rule.score == GroupScore::kMax ? group[0] : group[0] + group[1]);
  }
  int64_t before = 0;
  for (int64_t i = 0; i < rule.groups; ++i) {
    const float mine = scores[static_cast<size_t>(g)], other = scores[static_cast<size_t>(i)];
    before += other > mine || (other == mine && i < g);
  }
  return before;
}

TEST_CASE("experts outside a token's best groups get the score -infinity, and no others") {
  for (const ExpertGroups rule : {ExpertGroups{4, 2, GroupScore::kMax},
                                  {4, 2, GroupScore::kTop2},
                                  {2, 1, GroupScore::kTop2},
                                  {12, 5, GroupScore::kMax}}) {
    for (const int levels : {2, 5, 1000}) {
      const int64_t tokens = 40, experts = 12, size = experts / rule.groups;
      const std::vector<float> scores = tied_scores(tokens, experts, levels, 5);
      std::vector<float> limited = scores;
      limit_to_groups(rule, limited, experts);
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> row(scores.begin() + t * experts,
                                     scores.begin() + (t + 1) * experts);
        for (int64_t e = 0; e < experts; ++e) {
          const bool chosen = groups_before(rule, row, e / size) < rule.top;
          const float want = chosen ? row[static_cast<size_t>(e)] : -kInf;
          REQUIRE(limited[static_cast<size_t>(t * experts + e)] == want);
        }
      }
    }
  }
}

TEST_CASE("without fewer groups than there are nothing is limited, and NaN stays in any group") {
  const std::vector<float> scores = {1, 2, 3, NAN};
  std::vector<float> limited = scores;
  limit_to_groups({}, limited, 4);
  limit_to_groups({2, 2}, limited, 4);
  CHECK(std::equal(scores.begin(), scores.begin() + 3, limited.begin()));
  limited = {1, 2, NAN, 0};
  limit_to_groups({2, 1}, limited, 4);
  CHECK((std::isnan(limited[2]) && limited[3] == -kInf));
}

TEST_CASE("groups that do not fit experts or choices are refused") {
  const auto refused = [](const ExpertGroups& groups, int64_t k) {
    try {
      check(groups, 12, k, "gate:");
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(refused({4, 2}, 6).empty());
  CHECK_THAT(refused({5, 2}, 1), Contains("gate: 'groups' = 5, allowed: a divisor of the 12"));
  CHECK_THAT(refused({4, 5}, 1), Contains("'top_groups' = 5, allowed: 1 to 'groups' = 4"));
  CHECK_THAT(refused({4, 2}, 7), Contains("'top_groups' = 2, allowed: as many groups of 3"));
  CHECK_THAT(refused({12, 6, GroupScore::kTop2}, 1), Contains("'group_score' = 'top2'"));
}

TEST_CASE("what a token cannot choose is not ranked, and no gate can take it") {
  const std::vector<float> scores = {-kInf, 3, -kInf, 1, -kInf, -kInf, -kInf, -kInf};
  const ScoreMatrix s(scores, 4);
  using Ints = std::vector<int32_t>;
  CHECK(topk_rows(s, 2) == Ints{1, 3, -1, -1});
  CHECK(topk_rows(s, 3) == Ints{1, 3, -1, -1, -1, -1});
  CHECK(argmax_rows(s) == Ints{1, -1});
  CHECK(topk_col(s, 1, 2) == Ints{0});
  CHECK(sum_cols(s) == std::vector<double>{0, 3, 0, 1});
  OwnedMaps out(2, 4, 2, 2);
  RoutingBuilder builder(out.maps);
  builder.limit(scores.data());
  CHECK(builder.take(0, 3));
  CHECK_THROWS_WITH(builder.take(0, 2),
                    Contains("token 1 chose expert 3, which is in none of its"));
  for (const char* gate : {"top_k", "bpr", "expert_choice"}) {
    OwnedMaps maps(2, 4, builtin_gate(gate).columns(2, 4), 2);
    RoutingBuilder limited(maps.maps);
    limited.limit(scores.data());
    builtin_gate(gate).route(
        {.tokens = 2, .experts = 4, .k = 2, .capacity = 2, .scores = scores.data()}, limited);
    CHECK(maps.counts[0] + maps.counts[2] == 0);
    CHECK(maps.counts[1] == 1);
  }
}

}  // namespace
}  // namespace moe::test
