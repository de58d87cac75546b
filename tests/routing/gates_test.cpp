// Every built-in gate against its definition, computed token by token with counts over all tokens.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "engine/base/errors.h"
#include "tests/routing/fixture.h"

using namespace moe;
using Catch::Matchers::Contains;
using moe::test::OwnedMaps;
using moe::test::tied_scores;

namespace {

struct Case {
  int64_t tokens, experts, k;
  int levels;
  double factor;
  int64_t starved;
};

// Ties, one expert, k = experts, a starved expert, overflow, no limit.
const Case kCases[] = {{40, 4, 2, 3, 1.25, -1}, {40, 4, 2, 3, 0.3, -1},  {33, 8, 3, 2, 1.0, 5},
                       {17, 5, 5, 4, 0.5, -1},  {64, 3, 2, 1, 1.0, -1},  {50, 16, 4, 5, 0, 0},
                       {9, 12, 2, 1000, 1, -1}, {200, 4, 1, 50, 0.8, 3}, {1, 2, 2, 2, 1.0, -1},
                       {25, 1, 1, 3, 0.5, -1}};

std::vector<int32_t> ids_of(int64_t tokens) {
  Rng rng(99);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>(rng.below(31)));
  return ids;
}

struct Routed {
  std::vector<float> scores;
  std::vector<int32_t> ids;
  GateInput in;
  std::unique_ptr<OwnedMaps> out;
};

Routed route(const std::string& name, const Case& c, uint64_t seed) {
  const Gate& gate = builtin_gate(name);
  const int64_t k = gate.fixed_k > 0 ? gate.fixed_k : c.k;
  Routed r;
  r.scores = tied_scores(c.tokens, c.experts, c.levels, seed, c.starved);
  r.ids = ids_of(c.tokens);
  r.in = {.tokens = c.tokens,
          .experts = c.experts,
          .k = k,
          .capacity = gate.capacity(c.tokens, c.experts, k, c.factor),
          .scores = r.scores.data(),
          .ids = r.ids.data(),
          .first_token = 1000,
          .step = 3,
          .layer = 1};
  r.out =
      std::make_unique<OwnedMaps>(c.tokens, c.experts, gate.columns(k, c.experts), r.in.capacity);
  RoutingBuilder builder(r.out->maps);
  gate.route(r.in, builder);
  return r;
}

// The rank of expert e for token t: how many experts come before it.
int64_t rank_of(const Routed& r, int64_t t, int64_t e) {
  const float* p = r.scores.data() + t * r.in.experts;
  int64_t before = 0;
  for (int64_t f = 0; f < r.in.experts; ++f) before += p[f] > p[e] || (p[f] == p[e] && f < e);
  return before;
}

int32_t choice_of(const Routed& r, int64_t t, int64_t j) {
  for (int64_t e = 0; e < r.in.experts; ++e) {
    if (rank_of(r, t, e) == j) return static_cast<int32_t>(e);
  }
  return -1;
}

// Positions as GShard counts them: every choice advances its expert's count, also where it is over
// the capacity, and choice j counts after all choices below j.
void check_gshard_order(const Routed& r) {
  std::vector<int64_t> position(static_cast<size_t>(r.in.experts));
  for (int64_t j = 0; j < r.in.k; ++j) {
    for (int64_t t = 0; t < r.in.tokens; ++t) {
      const int32_t e = choice_of(r, t, j);
      REQUIRE(r.out->expert_of(t, j) == e);
      REQUIRE(r.out->kept(t, j) == (position[static_cast<size_t>(e)]++ < r.in.capacity));
    }
  }
}

// Kept are the first `capacity` tokens of an expert in token order; with one choice per token.
void check_token_order(const Routed& r, const std::vector<int32_t>& expert) {
  std::vector<int64_t> position(static_cast<size_t>(r.in.experts));
  for (int64_t t = 0; t < r.in.tokens; ++t) {
    const int32_t e = expert[static_cast<size_t>(t)];
    REQUIRE(r.out->expert_of(t, 0) == e);
    REQUIRE(r.out->kept(t, 0) == (position[static_cast<size_t>(e)]++ < r.in.capacity));
  }
  for (int64_t e = 0; e < r.in.experts; ++e) {
    const std::vector<int32_t> tokens = r.out->tokens_of(e);
    REQUIRE(std::is_sorted(tokens.begin(), tokens.end()));
  }
}

}  // namespace

TEST_CASE("switch sends a token to its best expert, and an expert keeps its first tokens") {
  for (const Case& c : kCases) {
    const Routed r = route("switch", c, 1);
    std::vector<int32_t> best;
    for (int64_t t = 0; t < c.tokens; ++t) best.push_back(choice_of(r, t, 0));
    check_token_order(r, best);
  }
}

TEST_CASE("top_k places all first choices before second ones, whether dropped ones count or not") {
  for (const Case& c : kCases) check_gshard_order(route("top_k", c, 2));
}

TEST_CASE("top2 is GShard's order over two choices, with the places of two choices or of one") {
  for (const Case& c : kCases) {
    if (c.experts < 2) continue;
    check_gshard_order(route("top2", c, 3));
    check_gshard_order(route("top2_c1", c, 3));
  }
}

TEST_CASE("bpr keeps an expert's best tokens, and of equal ones the first") {
  for (const Case& c : kCases) {
    const Routed r = route("bpr", c, 4);
    const auto best = [&](int64_t t) {
      return r.scores[static_cast<size_t>(t * c.experts + choice_of(r, t, 0))];
    };
    for (int64_t t = 0; t < c.tokens; ++t) {
      const int32_t e = choice_of(r, t, 0);
      int64_t before = 0;
      for (int64_t u = 0; u < c.tokens; ++u) {
        const bool ahead = best(u) > best(t) || (best(u) == best(t) && u < t);
        before += choice_of(r, u, 0) == e && ahead;
      }
      REQUIRE(r.out->expert_of(t, 0) == e);
      REQUIRE(r.out->kept(t, 0) == (before < r.in.capacity));
      if (r.out->kept(t, 0)) {
        REQUIRE(r.out->choice_slot[static_cast<size_t>(t)] == e * r.in.capacity + before);
      }
    }
  }
}

TEST_CASE("expert_choice gives every expert the tokens that score best for it") {
  for (const Case& c : kCases) {
    const Routed r = route("expert_choice", c, 5);
    for (int64_t e = 0; e < c.experts; ++e) {
      std::vector<int32_t> tokens = r.out->tokens_of(e);
      REQUIRE(static_cast<int64_t>(tokens.size()) == std::min(r.in.capacity, c.tokens));
      std::sort(tokens.begin(), tokens.end());
      for (int64_t t = 0; t < c.tokens; ++t) {
        const auto score = [&](int64_t u) {
          return r.scores[static_cast<size_t>(u * c.experts + e)];
        };
        int64_t before = 0;
        for (int64_t u = 0; u < c.tokens; ++u) {
          before += score(u) > score(t) || (score(u) == score(t) && u < t);
        }
        const bool taken =
            std::binary_search(tokens.begin(), tokens.end(), static_cast<int32_t>(t));
        REQUIRE(taken == (before < r.in.capacity));
      }
    }
    for (int64_t t = 0; t < c.tokens; ++t) {  // a token's experts ascend, without gaps
      for (int64_t j = 1; j < c.experts; ++j) {
        const int32_t e = r.out->expert_of(t, j);
        REQUIRE((e == -1 || (r.out->expert_of(t, j - 1) >= 0 && r.out->expert_of(t, j - 1) < e)));
      }
    }
  }
}

TEST_CASE("hash sends a token to its id modulo experts, in token order") {
  for (const Case& c : kCases) {
    const Routed r = route("hash", c, 6);
    std::vector<int32_t> expert;
    for (const int32_t id : r.ids) expert.push_back(id % static_cast<int32_t>(c.experts));
    check_token_order(r, expert);
  }
}

TEST_CASE("random chooses k different experts, and drops in token order") {
  for (const Case& c : kCases) {
    const Routed r = route("random", c, 7);
    std::vector<int64_t> position(static_cast<size_t>(c.experts));
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::vector<bool> chosen(static_cast<size_t>(c.experts));
      for (int64_t j = 0; j < c.k; ++j) {
        const int32_t e = r.out->expert_of(t, j);
        REQUIRE((e >= 0 && e < c.experts));
        REQUIRE_FALSE(chosen[static_cast<size_t>(e)]);
        chosen[static_cast<size_t>(e)] = true;
        REQUIRE(r.out->kept(t, j) == (position[static_cast<size_t>(e)]++ < r.in.capacity));
      }
    }
  }
}

TEST_CASE("random depends on the global token, the step and the layer alone") {
  const Gate& gate = builtin_gate("random");
  const auto draw = [&](int64_t first, int64_t tokens, int64_t k, int64_t step, int64_t layer) {
    OwnedMaps out(tokens, 8, k, tokens);
    RoutingBuilder builder(out.maps);
    gate.route({.tokens = tokens,
                .experts = 8,
                .k = k,
                .capacity = tokens,
                .first_token = first,
                .step = step,
                .layer = layer},
               builder);
    return out.expert;
  };
  const std::vector<int32_t> all = draw(0, 4000, 1, 2, 5);
  const std::vector<int32_t> tail = draw(1000, 3000, 1, 2, 5);
  CHECK(std::equal(tail.begin(), tail.end(), all.begin() + 1000));
  const auto same = [&](const std::vector<int32_t>& other) {
    return std::inner_product(all.begin(), all.end(), other.begin(), 0, std::plus<>(),
                              std::equal_to<>());
  };
  // Independent draws agree in 1/8 of 4000 tokens: 500, standard deviation 21.
  CHECK(std::abs(same(draw(0, 4000, 1, 3, 5)) - 500) < 105);
  CHECK(std::abs(same(draw(0, 4000, 1, 2, 6)) - 500) < 105);
  CHECK(std::abs(same(draw(0, 4000, 1, 5, 2)) - 500) < 105);
  const std::vector<int32_t> pairs = draw(0, 4000, 2, 2, 5);
  std::vector<int> joint(64);
  for (size_t t = 0; t < 4000; ++t) {
    REQUIRE(pairs[2 * t] == all[t]);  // more choices leave the first one as it is
    ++joint[static_cast<size_t>(pairs[2 * t] * 8 + pairs[2 * t + 1])];
  }
  for (int i = 0; i < 64; ++i) {  // 56 ordered pairs, 71.4 each, standard deviation 8.4
    if (i / 8 == i % 8) continue;
    CHECK(std::abs(joint[static_cast<size_t>(i)] - 71) < 42);
  }
}

TEST_CASE("whatever the gate, maps are inverse, positions contiguous, counts within the capacity") {
  for (const Gate& gate : builtin_gates()) {
    for (const Case& c : kCases) {
      if (gate.fixed_k > c.experts) continue;
      const Routed r = route(gate.name, c, 8);
      const RoutingMaps& m = r.out->maps;
      INFO(gate.name << ", tokens " << c.tokens << ", experts " << c.experts);
      int64_t kept = 0, chosen = 0;
      for (int64_t i = 0; i < m.tokens * m.columns; ++i) {
        chosen += m.expert[i] >= 0;
        if (m.choice_slot[i] < 0) continue;
        ++kept;
        REQUIRE(m.slot_choice[m.choice_slot[i]] == i);
        REQUIRE(m.choice_slot[i] / m.capacity == m.expert[i]);
      }
      int64_t used = 0;
      for (int64_t e = 0; e < m.experts; ++e) {
        REQUIRE((m.counts[e] >= 0 && m.counts[e] <= m.capacity));
        used += m.counts[e];
        for (int64_t i = 0; i < m.capacity; ++i) {
          const int32_t choice = m.slot_choice[e * m.capacity + i];
          REQUIRE((choice >= 0) == (i < m.counts[e]));
          if (choice >= 0) REQUIRE(m.choice_slot[choice] == e * m.capacity + i);
        }
      }
      REQUIRE(used == kept);
      if (gate.code == AssignmentCode::kChoices) {
        REQUIRE(chosen == c.tokens * r.in.k);
        REQUIRE(dropped(m, gate.code) == chosen - kept);
        if (c.factor <= 0) REQUIRE(kept == chosen);
      }
    }
  }
}

TEST_CASE("a token-scope gate routes a batch in parts as it routes the whole") {
  const auto check_parts = [](const Gate& gate, double factor) {
    const int64_t tokens = 60, experts = 4, k = gate.fixed_k > 0 ? gate.fixed_k : 2;
    const int64_t capacity = gate.capacity(tokens, experts, k, factor);
    const std::vector<float> scores = tied_scores(tokens, experts, 4, 9);
    const std::vector<int32_t> ids = ids_of(tokens);
    const auto run = [&](int64_t from, int64_t n, std::vector<int32_t>& used, OwnedMaps& out) {
      RoutingBuilder builder(out.maps, used);
      gate.route({.tokens = n,
                  .experts = experts,
                  .k = k,
                  .capacity = capacity,
                  .scores = scores.data() + from * experts,
                  .ids = ids.data() + from,
                  .first_token = from},
                 builder);
      used = out.counts;
    };
    const int64_t columns = gate.columns(k, experts);
    OwnedMaps whole(tokens, experts, columns, capacity);
    std::vector<int32_t> used_by_whole(4), used_by_parts(4);
    run(0, tokens, used_by_whole, whole);
    int64_t from = 0;
    for (const int64_t n : {13, 1, 30, 16}) {
      OwnedMaps part(n, experts, columns, capacity);
      run(from, n, used_by_parts, part);
      for (int64_t i = 0; i < n * columns; ++i) {
        REQUIRE(part.expert[static_cast<size_t>(i)] ==
                whole.expert[static_cast<size_t>(from * columns + i)]);
        REQUIRE(part.kept(0, i) == whole.kept(from, i));
      }
      from += n;
    }
    CHECK(used_by_parts == used_by_whole);
  };
  int token_gates = 0, unlimited = 0;
  for (const Gate& gate : builtin_gates()) {
    INFO(gate.name);
    if (scope_of(gate, 0.7) == GateScope::kToken) ++token_gates, check_parts(gate, 0.7);
    if (scope_of(gate, 0) == GateScope::kToken) ++unlimited, check_parts(gate, 0);
  }
  CHECK(token_gates == 3);  // switch, hash, random
  CHECK(unlimited == 8);
}

TEST_CASE("a gate shows whether it is of token scope") {
  int token = 0;
  for (const Gate& gate : builtin_gates()) {
    INFO(gate.name);
    const int64_t tokens = 61, experts = 4, k = gate.fixed_k > 0 ? gate.fixed_k : 2;
    const int64_t capacity = gate.capacity(tokens, experts, k, 0.7);
    const std::vector<float> scores = tied_scores(tokens, experts, 40, 9);
    const std::vector<int32_t> ids = ids_of(tokens);
    const GateInput in = {.tokens = tokens,
                          .experts = experts,
                          .k = k,
                          .capacity = capacity,
                          .scores = scores.data(),
                          .ids = ids.data(),
                          .first_token = 7};
    const auto check = [&] { check_token_scope(gate.route, in, gate.columns(k, experts)); };
    if (scope_of(gate, 0.7) == GateScope::kToken) {
      ++token;
      CHECK_NOTHROW(check());
    } else {
      CHECK_THROWS_WITH(check(), Catch::Contains("is routed differently"));
    }
  }
  CHECK(token == 3);
}

TEST_CASE("capacity is the ceiling of the share, and all tokens where there is no limit") {
  const auto capacity = [](const char* name, int64_t n, int64_t e, int64_t k, double factor) {
    return builtin_gate(name).capacity(n, e, k, factor);
  };
  CHECK(capacity("switch", 512, 4, 1, 1.25) == 160);
  CHECK(capacity("switch", 511, 4, 1, 1.25) == 160);  // 159.6875
  CHECK(capacity("switch", 10, 16, 1, 0.1) == 1);
  CHECK(capacity("top2", 512, 4, 2, 1.25) == 320);
  CHECK(capacity("top2_c1", 512, 4, 2, 1.25) == 160);
  CHECK(capacity("top_k", 100, 8, 3, 1.0) == 38);  // 37.5
  CHECK(capacity("random", 100, 8, 3, 1.0) == 38);
  for (const char* name : {"bpr", "expert_choice", "hash"})
    CHECK(capacity(name, 90, 4, 1, 1) == 23);
  for (const Gate& gate : builtin_gates()) CHECK(gate.capacity(77, 4, 2, 0) == 77);
}

TEST_CASE("a capacity that makes no sense is refused with the gate's name and the value") {
  const auto capacity = [](const char* name, int64_t n, int64_t e, int64_t k, double factor) {
    return builtin_gate(name).capacity(n, e, k, factor);
  };
  CHECK_THROWS_WITH(capacity("switch", 0, 4, 1, 1), Contains("gate switch: tokens = 0"));
  CHECK_THROWS_WITH(capacity("bpr", 8, 0, 1, 1), Contains("gate bpr: experts = 0"));
  CHECK_THROWS_WITH(capacity("top_k", 8, 4, 5, 1), Contains("k = 5 must be between 1 and"));
  CHECK_THROWS_WITH(capacity("top2", 8, 1, 2, 1),
                    Contains("k = 2 must be between 1 and experts = 1"));
  CHECK_THROWS_WITH(capacity("hash", 8, 4, 1, std::nan("")), Contains("must be finite"));
  CHECK_THROWS_WITH(capacity("switch", 1 << 20, 64, 1, 1e9), Contains("too many"));
}

TEST_CASE("scores that hold a NaN are never routed") {
  for (const Gate& gate : builtin_gates()) {
    if (gate.name == "hash" || gate.name == "random") continue;  // they do not read scores
    for (const int64_t experts : {2, 8, 11}) {
      for (int64_t at = 0; at < experts; ++at) {
        std::vector<float> scores(static_cast<size_t>(5 * experts), 0.5f);
        scores[static_cast<size_t>(3 * experts + at)] = std::numeric_limits<float>::quiet_NaN();
        const int64_t k = gate.fixed_k > 0 ? gate.fixed_k : 2;
        OwnedMaps out(5, experts, gate.columns(k, experts), 5);
        RoutingBuilder builder(out.maps);
        const GateInput in{
            .tokens = 5, .experts = experts, .k = k, .capacity = 5, .scores = scores.data()};
        CHECK_THROWS_AS(gate.route(in, builder), RunError);
        OwnedMaps again(5, experts, gate.columns(k, experts), 5);
        RoutingBuilder other(again.maps);
        CHECK_THROWS_WITH(gate.route(in, other), "gate: scores of token 3 hold a NaN");
      }
    }
  }
}

TEST_CASE("an unknown gate is refused with the nearest name") {
  CHECK_THROWS_AS(builtin_gate("swich"), UserError);
  CHECK_THROWS_WITH(builtin_gate("swich"), Contains("'swich'") && Contains("'switch'"));
}

TEST_CASE("balanced routing fills all slots up to the capacity factor that a gate names") {
  constexpr int64_t kTokens = 64, kExperts = 4, kChoices = 2;
  for (const Gate& gate : builtin_gates()) {
    INFO(gate.name);
    const int64_t k = gate.fixed_k > 0 ? gate.fixed_k : kChoices;
    const auto choices = static_cast<double>(kTokens * gate.columns(k, kExperts));
    const auto slots = [&](double factor) {
      return static_cast<double>(kExperts * gate.capacity(kTokens, kExperts, k, factor));
    };
    if (gate.chooser == Chooser::kExpert) {
      CHECK(std::isinf(gate.full_at));
      continue;
    }
    CHECK(slots(gate.full_at) == choices);
    CHECK(choices / slots(2 * gate.full_at) == 0.5);
  }
}
