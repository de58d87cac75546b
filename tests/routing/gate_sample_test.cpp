// Scores of a law, and gates that run on them: counts against those of the workload and of binomial
// distributions.
#include "engine/routing/gate_sample.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "engine/routing/primitives.h"
#include "engine/routing/workload.h"

namespace moe::test {
namespace {

std::shared_ptr<const RoutingModel> law_of(const std::string& name, const WorkloadOptions& options,
                                           uint64_t seed = 3) {
  return std::make_shared<const RoutingModel>(workload(name, options, seed));
}

GateUse use_of(Gate gate, int64_t ranks, int64_t tokens, int64_t experts, int64_t k,
               double factor) {
  if (gate.fixed_k > 0) k = gate.fixed_k;
  const int64_t capacity = gate.capacity(tokens, experts, k, factor);
  const int64_t columns = gate.columns(k, experts);
  return {.gate = std::move(gate),
          .ranks = ranks,
          .tokens = tokens,
          .experts = experts,
          .k = k,
          .columns = columns,
          .capacity = capacity,
          .vocab = 1000,
          .block = [](int64_t layer) { return 2 * layer + 1; }};
}

/// A gate that takes the best expert of every token, and the second best of one token in a hundred.
Gate rare_second() {
  Gate gate = builtin_gate("random");
  gate.name = "rare_second";
  gate.chooser = Chooser::kToken;
  gate.fixed_k = 2;
  gate.route = [](const GateInput& in, RoutingBuilder& out) {
    const auto size = static_cast<size_t>(in.tokens * in.experts);
    const auto best = topk_rows({std::span(in.scores, size), in.experts}, 2);
    for (int64_t t = 0; t < in.tokens; ++t) {
      out.take(t, best[static_cast<size_t>(2 * t)]);
      if ((in.first_token + t) % 100 == 0) out.take(t, best[static_cast<size_t>(2 * t + 1)]);
    }
  };
  return gate;
}

/// Returns how often expert e is choice j, [k][experts], over the tokens of all ranks and steps.
template <class ChoicesOf>
std::vector<std::vector<double>> histogram(const RoutingQuery& q, int64_t steps,
                                           const ChoicesOf& choices_of) {
  std::vector<std::vector<double>> counts(static_cast<size_t>(q.k),
                                          std::vector<double>(static_cast<size_t>(q.experts)));
  RoutingQuery query = q;
  for (query.step = 0; query.step < steps; ++query.step) {
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      const std::vector<int32_t> choices = choices_of(query, rank);
      for (size_t i = 0; i < choices.size(); ++i) {
        if (choices[i] < 0) continue;
        ++counts[i % counts.size()][static_cast<size_t>(choices[i])];
      }
    }
  }
  return counts;
}

TEST_CASE("the k best scores are distributed as the choices of the workload") {
  const std::vector<std::pair<std::string, WorkloadOptions>> laws = {
      {"zipf", {{"s", 1.1}}},
      {"log_normal", {}},
      {"hot_rank", {{"share", 0.6}}},
      {"spread_hot", {{"hot", 3}}},
      {"source_ragged", {}},
      {"zero_token_rank", {{"s", 0.7}}},
      {"rotating_hotspot", {{"period", 2}}},
      {"burst", {{"chance", 0.5}, {"length", 1}}},
      {"markov", {}}};
  // Popularity does not drift, so that steps only add tokens; hot experts change with steps.
  const RoutingQuery q = {.layer = 1, .ranks = 4, .tokens = 1500, .experts = 12, .k = 3};
  const int64_t steps = 10;
  for (const auto& [name, options] : laws) {
    INFO(name);
    const auto law = law_of(name, options);
    const auto expected = histogram(q, steps, [&](const RoutingQuery& query, int64_t rank) {
      std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k));
      law->route(query, rank, choices);
      return choices;
    });
    const auto found = histogram(q, steps, [&](const RoutingQuery& query, int64_t rank) {
      const ScoreLaw scores = law->scores(query, rank);
      std::vector<float> values(static_cast<size_t>(scores.tokens * q.experts));
      scores.write(kernels::ScoreRule::kSoftmax, 0, scores.tokens, values.data());
      return values.empty() ? std::vector<int32_t>{} : topk_rows({values, q.experts}, q.k);
    });
    for (size_t j = 0; j < expected.size(); ++j) {
      // Chi-square of two samples of equal size with 11 degrees of freedom: above 45 in less than
      // one of 100,000 cases.
      double chi = 0;
      for (size_t e = 0; e < expected[j].size(); ++e) {
        const double sum = expected[j][e] + found[j][e], difference = expected[j][e] - found[j][e];
        if (sum > 0) chi += difference * difference / sum;
      }
      INFO("choice " << j);
      CHECK(chi < 45);
    }
  }
}

TEST_CASE("scores are those of the rule, and those of a token do not depend on the part") {
  for (const auto rule : {kernels::ScoreRule::kSoftmax, kernels::ScoreRule::kSigmoid}) {
    const ScoreLaw law = law_of("zipf", {})->scores({.ranks = 2, .tokens = 40, .experts = 13}, 1);
    std::vector<float> all(40 * 13), part(9 * 13);
    law.write(rule, 0, 40, all.data());
    law.write(rule, 17, 9, part.data());
    CHECK(std::equal(part.begin(), part.end(), all.begin() + 17 * 13));
    for (size_t t = 0; t < 40; ++t) {
      double sum = 0;
      for (size_t e = 0; e < 13; ++e) {
        CHECK((all[t * 13 + e] > 0 && all[t * 13 + e] < 1));
        sum += all[t * 13 + e];
      }
      if (rule == kernels::ScoreRule::kSoftmax) CHECK(sum == Approx(1).epsilon(1e-5));
    }
  }
}

TEST_CASE("the best experts of a law are those with the best scores") {
  // With a share of 1 all experts but one have popularity 0, so that their scores are equal.
  const std::vector<std::pair<std::string, WorkloadOptions>> laws = {
      {"zipf", {{"s", 1.2}}},
      {"zipf", {{"s", 8}}},
      {"log_normal", {}},
      {"hot_expert", {{"share", 1}}}};
  for (const auto& [name, options] : laws) {
    for (const int64_t experts : {1, 13, 64, 700}) {
      const auto law = law_of(name, options)->scores({.tokens = 500, .experts = experts}, 0);
      std::vector<float> all(static_cast<size_t>(400 * experts));
      law.write(kernels::ScoreRule::kSoftmax, 100, 400, all.data());
      for (const int64_t k :
           {int64_t{1}, std::min<int64_t>(2, experts), (experts + 1) / 2, experts}) {
        INFO(name << ", " << experts << " experts, k = " << k);
        CHECK(law.best(k, 100, 400) == topk_rows({all, experts}, k));
      }
    }
  }
}

TEST_CASE("a workload without popularity has no scores") {
  CHECK(law_of("balanced", {})->scores == nullptr);
}

TEST_CASE("a gate that takes its second choice in one of a hundred cases keeps 1.01 per token") {
  const MeanRouting mean = even_routing(use_of(rare_second(), 8, 2048, 8, 2, 1.25), 3);
  CHECK(mean.choices == Approx(1.01).margin(0.0005));
  CHECK(mean.kept == mean.choices);
  CHECK(mean.of_balanced == Approx(1.01 / 2).margin(0.0005));
  CHECK(mean.slot_occupancy == Approx(1.01 / 2 / 1.25).margin(0.0005));
}

TEST_CASE("a gate that drops nothing on even scores is as balanced, to the last bit") {
  for (const char* name : {"switch", "top_k", "top2", "bpr", "hash", "random", "expert_choice"}) {
    INFO(name);
    CHECK(even_routing(use_of(builtin_gate(name), 4, 8192, 4, 2, 1.5), 2).of_balanced == 1);
    CHECK(even_routing(use_of(builtin_gate(name), 4, 512, 16, 2, 0), 1).of_balanced == 1);
  }
}

TEST_CASE("on even scores as many choices are dropped as independent draws give") {
  // 512 tokens and 64 experts: the tokens of an expert have a binomial distribution with mean 8.
  const double p = 1.0 / 64;
  double expected = 0;  // rows above the capacity of 8
  for (int n = 0; n <= 512; ++n) {
    const double choose = std::lgamma(513.0) - std::lgamma(n + 1.0) - std::lgamma(513.0 - n);
    const double weight = std::exp(choose + n * std::log(p) + (512 - n) * std::log(1 - p));
    expected += weight * std::max(0, n - 8);
  }
  for (const char* name : {"switch", "bpr", "random", "hash"}) {
    INFO(name);
    const MeanRouting mean = even_routing(use_of(builtin_gate(name), 64, 512, 64, 1, 1), 1);
    CHECK(mean.sources == 16);
    CHECK(mean.tokens == 512);
    CHECK(mean.choices == 1);
    CHECK(1 - mean.kept == Approx(expected / 8).epsilon(0.1));
  }
}

TEST_CASE("a batch of more tokens than the sample has is routed as its first tokens") {
  const MeanRouting mean = even_routing(use_of(builtin_gate("top2"), 2, 1 << 18, 4, 2, 1.25), 1);
  CHECK(mean.tokens == 1 << 16);
  CHECK(mean.kept == 2);
}

TEST_CASE("under a law the choices of the first ranks are those of the gate on their scores") {
  const auto law = law_of("zipf", {{"s", 0.9}});
  const RoutingQuery q = {.step = 4, .layer = 1, .ranks = 6, .tokens = 300, .experts = 8, .k = 2};
  for (const auto& [gate, groups] : {std::pair{rare_second(), ExpertGroups{}},
                                     {builtin_gate("top2_c1"), {}},
                                     {builtin_gate("expert_choice"), {}},
                                     {builtin_gate("top2"), ExpertGroups{4, 1}},
                                     {rare_second(), ExpertGroups{4, 2, GroupScore::kTop2}}}) {
    INFO(gate.name);
    GateUse use = use_of(gate, q.ranks, q.tokens, q.experts, q.k, 1.25);
    use.groups = groups;
    const RoutingModel gated = gated_routing(use, law);
    const ExpertCounts choices = gated.loads(q), kept = gated.kept(q);
    const auto block_layer = [](int64_t block) { return block / 2; };
    const Gate scored = scored_gate(gate, law, q.ranks, q.tokens, block_layer);
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      const size_t size = static_cast<size_t>(q.tokens * use.columns);
      std::vector<int32_t> expert(size), slot(size), counts(8);
      RoutingBuilder out({.tokens = q.tokens,
                          .experts = 8,
                          .columns = use.columns,
                          .capacity = use.capacity,
                          .expert = expert.data(),
                          .choice_slot = slot.data(),
                          .counts = counts.data()});
      const std::vector<int32_t> ids(static_cast<size_t>(q.tokens));
      scored.route({.tokens = q.tokens,
                    .experts = 8,
                    .k = q.k,
                    .capacity = use.capacity,
                    .ids = ids.data(),
                    .first_token = rank * q.tokens,
                    .step = 4,
                    .layer = 3,
                    .groups = groups},
                   out);
      for (int64_t t = 0; t < q.tokens && groups.limits(); ++t) {
        std::set<int32_t> of;  // groups that the token chose
        for (int64_t j = 0; j < use.columns; ++j) {
          const int32_t e = expert[static_cast<size_t>(t * use.columns + j)];
          if (e >= 0) of.insert(e / static_cast<int32_t>(8 / groups.groups));
        }
        REQUIRE(static_cast<int64_t>(of.size()) <= groups.top);
      }
      for (int64_t e = 0; e < 8; ++e) {
        const auto chosen = std::count(expert.begin(), expert.end(), static_cast<int32_t>(e));
        CHECK(choices.at(rank, e) == chosen);
        CHECK(kept.at(rank, e) == counts[static_cast<size_t>(e)]);
      }
      CHECK((gated.route != nullptr) == (use.columns == q.k));
      if (!gated.route) continue;
      std::vector<int32_t> choices_kept(size);
      gated.route(q, rank, choices_kept);
      for (size_t i = 0; i < size; ++i) REQUIRE(choices_kept[i] == (slot[i] < 0 ? -1 : expert[i]));
    }
  }
}

TEST_CASE("further ranks have the counts of sampled ones, the same for every query") {
  const auto law = law_of("zipf", {});
  const RoutingQuery q = {.step = 1, .ranks = 200, .tokens = 64, .experts = 8, .k = 2};
  const RoutingModel gated =
      gated_routing(use_of(rare_second(), q.ranks, q.tokens, q.experts, q.k, 1.25), law);
  const RoutingModel again =
      gated_routing(use_of(rare_second(), q.ranks, q.tokens, q.experts, q.k, 1.25), law);
  const ExpertCounts loads = gated.loads(q);
  CHECK(again.loads(q) == loads);
  CHECK(gated.loads(q) == loads);
  const auto row = [&](int64_t r) {
    return std::vector(loads.rows.begin() + r * 8, loads.rows.begin() + (r + 1) * 8);
  };
  std::set<std::vector<int64_t>> first, all;
  for (int64_t r = 0; r < 200; ++r) {
    if (r < 16) first.insert(row(r));
    all.insert(row(r));
  }
  CHECK(first.size() == 16);
  CHECK(all == first);
}

TEST_CASE("a gate that reads whose tokens it gets runs for every rank") {
  // The tokens of each pair of ranks go to an expert of the pair's own.
  Gate gate = rare_second();
  gate.fixed_k = 1;
  gate.route = [](const GateInput& in, RoutingBuilder& out) {
    if (in.reads_source != nullptr) *in.reads_source = true;
    for (int64_t t = 0; t < in.tokens; ++t) out.take(t, (in.first_token + t) / 8192);
  };
  const GateUse use = use_of(gate, 40, 4096, 20, 1, 0);
  CHECK(even_routing(use, 1).by_source);
  // One that reads it for what is as good as random has a mean.
  Gate rare = rare_second();
  rare.route = [route = rare.route](const GateInput& in, RoutingBuilder& out) {
    if (in.reads_source != nullptr) *in.reads_source = true;
    route(in, out);
  };
  CHECK_FALSE(even_routing(use_of(rare, 40, 4096, 20, 2, 0), 1).by_source);
  const RoutingQuery q = {.ranks = 40, .tokens = 4096, .experts = 20, .k = 1};
  const ExpertCounts loads = gated_routing(use, law_of("zipf", {{"s", 0}})).loads(q);
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t e = 0; e < 20; ++e) CHECK(loads.at(r, e) == (e == r / 2 ? 4096 : 0));
  }
}

TEST_CASE("tokens that do not choose are not shown to the gate") {
  const auto law = law_of("zero_token_rank", {});
  const RoutingQuery q = {.ranks = 4, .tokens = 50, .experts = 5, .k = 2};
  const RoutingModel gated =
      gated_routing(use_of(rare_second(), q.ranks, q.tokens, q.experts, q.k, 0), law);
  const ExpertCounts loads = gated.loads(q), expected = law->loads(q);
  for (int64_t r = 0; r < q.ranks; ++r) {
    int64_t mine = 0, theirs = 0;
    for (int64_t e = 0; e < q.experts; ++e) mine += loads.at(r, e), theirs += expected.at(r, e);
    CHECK((mine == 0) == (theirs == 0));
  }
}

TEST_CASE("a larger number of tokens has counts in proportion, within the capacity") {
  const auto law = law_of("hot_expert", {{"share", 0.5}});
  const RoutingQuery q = {.ranks = 2, .tokens = 20000, .experts = 4, .k = 2};
  const GateUse use = use_of(rare_second(), q.ranks, q.tokens, q.experts, q.k, 0.7);
  const RoutingModel gated = gated_routing(use, law);
  const ExpertCounts loads = gated.loads(q), kept = gated.kept(q);
  CHECK(static_cast<double>(loads.total()) == Approx(1.01 * 2 * 20000).epsilon(0.005));
  CHECK(*std::max_element(kept.rows.begin(), kept.rows.end()) == use.capacity);
  CHECK(kept.total() < loads.total());
  for (size_t i = 0; i < kept.rows.size(); ++i) CHECK(kept.rows[i] <= loads.rows[i]);
}

}  // namespace
}  // namespace moe::test
