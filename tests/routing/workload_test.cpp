// Every workload is what its name says, per rank and per expert: counts against closed forms,
// within 5 standard deviations of what the draws give.
#include "engine/routing/workload.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/routing/sampler.h"

using namespace moe;
using Catch::Matchers::Contains;

namespace {

std::vector<int32_t> choices_of(const RoutingModel& routing, const RoutingQuery& q, int64_t rank) {
  std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k), -7);
  routing.route(q, rank, choices);
  return choices;
}

ExpertCounts histogram(const RoutingModel& routing, const RoutingQuery& q) {
  ExpertCounts loads(q.ranks, q.experts);
  for (int64_t r = 0; r < q.ranks; ++r) {
    for (const int32_t e : choices_of(routing, q, r)) {
      if (e >= 0) ++loads.at(r, e);
    }
  }
  return loads;
}

// Loads summed over steps.
ExpertCounts summed(const RoutingModel& routing, RoutingQuery q, int64_t steps) {
  ExpertCounts sum(q.ranks, q.experts);
  for (q.step = 0; q.step < steps; ++q.step) {
    const ExpertCounts one = routing.loads(q);
    for (size_t i = 0; i < sum.rows.size(); ++i) sum.rows[i] += one.rows[i];
  }
  return sum;
}

std::vector<int64_t> by_expert(const ExpertCounts& loads) {
  std::vector<int64_t> sums;
  for (int64_t e = 0; e < loads.experts; ++e) sums.push_back(loads.of_expert(e));
  return sums;
}

bool near(int64_t count, int64_t n, double share) {
  const auto draws = static_cast<double>(n);
  return std::abs(static_cast<double>(count) - draws * share) <=
         5 * std::sqrt(draws * share * (1 - share)) + 1;
}

// The experts' counts and each rank's counts follow `share`, largest first.
void check_shares(const ExpertCounts& loads, std::vector<double> share) {
  std::vector<int64_t> order(static_cast<size_t>(loads.experts));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return loads.of_expert(a) > loads.of_expert(b); });
  std::sort(share.rbegin(), share.rend());
  for (size_t i = 0; i < share.size(); ++i) {
    INFO("the " << i + 1 << "-th most popular expert");
    CHECK(near(loads.of_expert(order[i]), loads.total(), share[i]));
    for (int64_t r = 0; r < loads.sources; ++r) {
      INFO("rank " << r);
      CHECK(near(loads.at(r, order[i]), loads.total() / loads.sources, share[i]));
    }
  }
}

std::vector<double> zipf_shares(size_t n, double s) {
  std::vector<double> share;
  for (size_t i = 0; i < n; ++i) share.push_back(std::pow(static_cast<double>(i + 1), -s));
  const double sum = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& p : share) p /= sum;
  return share;
}

std::vector<double> hot_shares(size_t n, size_t hot, double share) {
  std::vector<double> p(n, (1 - share) / static_cast<double>(n - hot));
  std::fill_n(p.begin(), hot, share / static_cast<double>(hot));
  return p;
}

int64_t hottest(const ExpertCounts& loads) {
  const std::vector<int64_t> sums = by_expert(loads);
  return std::max_element(sums.begin(), sums.end()) - sums.begin();
}

// Random values of all options, within ranges that a test can walk.
WorkloadOptions some_options(const WorkloadDef& def, Rng& rng) {
  WorkloadOptions options;
  for (const OptionSpec& o : def.options) {
    const double hi = std::min(o.hi, o.name == "memory" ? 20.0 : 6.0);
    const double value = o.lo + rng.uniform() * (hi - o.lo);
    if (o.name == "max_over_mean") continue;  // some sizes cannot have it (skew_test)
    if (rng.below(2) == 0) options[o.name] = o.is_integer ? std::floor(value) : value;
  }
  return options;
}

}  // namespace

TEST_CASE("loads are the histogram of the choices, which are different experts of each token") {
  Rng rng(20);
  for (const WorkloadDef& def : workloads()) {
    for (int trial = 0; trial < 12; ++trial) {
      const RoutingModel routing = workload(def.name, some_options(def, rng), rng.next());
      RoutingQuery q;
      q.step = rng.below(30);
      q.layer = rng.below(7);
      q.ranks = 2 + rng.below(5);
      q.tokens = rng.below(60);
      q.experts = 1 + rng.below(20);
      // In W5 the first half of the experts gets no tokens.
      const int64_t used =
          def.name == "W5_zero_expert_rank" ? q.experts - q.experts / 2 : q.experts;
      q.k = 1 + rng.below(std::min<int64_t>(used, trial % 3 == 0 ? 20 : 3));
      INFO(routing.name << ": step " << q.step << " layer " << q.layer << " ranks " << q.ranks
                        << " tokens " << q.tokens << " experts " << q.experts << " k " << q.k);
      REQUIRE(routing.loads(q) == histogram(routing, q));
      for (int64_t r = 0; r < q.ranks; ++r) {
        const std::vector<int32_t> choices = choices_of(routing, q, r);
        REQUIRE(choices == choices_of(routing, q, r));
        for (size_t t = 0; t < static_cast<size_t>(q.tokens); ++t) {
          const auto first = choices.begin() + static_cast<std::ptrdiff_t>(t) * q.k;
          const std::set<int32_t> different(first, first + q.k);
          const bool none = different == std::set<int32_t>{-1};
          REQUIRE((none || different.size() == static_cast<size_t>(q.k)));
          REQUIRE(*different.rbegin() < q.experts);
          REQUIRE((none || *different.begin() >= 0));
        }
      }
    }
  }
}

TEST_CASE(
    "the same name, options and seed give the same routing; another seed, step or layer another") {
  for (const WorkloadDef& def : workloads()) {
    INFO(def.name);
    const RoutingQuery q = {.step = 3, .layer = 2, .ranks = 4, .tokens = 64, .experts = 16, .k = 2};
    const auto routed = [&](uint64_t seed, int64_t step, int64_t layer) {
      RoutingQuery other = q;
      other.step = step;
      other.layer = layer;
      const RoutingModel routing = workload(def.name, {}, seed);
      std::vector<int32_t> all;
      for (int64_t r = 0; r < q.ranks; ++r) {
        for (const int32_t e : choices_of(routing, other, r)) all.push_back(e);
      }
      return all;
    };
    // W0 to W7 are the same in all layers, and W0 draws nothing.
    const bool drawn = def.name != "W0_balanced", by_layer = def.name[0] != 'W';
    CHECK(routed(5, 3, 2) == routed(5, 3, 2));
    CHECK((routed(5, 3, 2) != routed(6, 3, 2)) == drawn);
    CHECK((routed(5, 3, 2) != routed(5 + (uint64_t{1} << 32), 3, 2)) == drawn);
    CHECK((routed(5, 3, 2) != routed(5, 4, 2)) == drawn);
    CHECK((routed(5, 3, 2) != routed(5, 3, 3)) == by_layer);
  }
}

TEST_CASE("balanced is balanced per rank and per expert: counts differ by at most one") {
  Rng rng(3);
  const RoutingModel routing = workload("balanced", {}, 9);
  for (int trial = 0; trial < 200; ++trial) {
    RoutingQuery q;
    q.layer = rng.below(3);
    q.ranks = 1 + rng.below(6);
    q.tokens = rng.below(50);
    q.experts = 1 + rng.below(12);
    q.k = 1 + rng.below(q.experts);
    const ExpertCounts loads = routing.loads(q);
    const auto spread = [](const auto& counts) {
      const auto [lo, hi] = std::minmax_element(counts.begin(), counts.end());
      return *hi - *lo;
    };
    REQUIRE(loads.total() == q.ranks * q.tokens * q.k);
    REQUIRE(spread(by_expert(loads)) <= 1);
    for (int64_t r = 0; r < q.ranks; ++r) {
      const auto row = loads.rows.begin() + r * q.experts;
      REQUIRE(spread(std::vector<int64_t>(row, row + q.experts)) <= 1);
    }
  }
}

TEST_CASE("balanced gives every expert as many first choices as the others") {
  const RoutingQuery q = {.ranks = 1, .tokens = 48, .experts = 12, .k = 4};
  const std::vector<int32_t> choices = choices_of(workload("balanced", {}, 1), q, 0);
  std::vector<int> first(12);
  for (size_t t = 0; t < 48; ++t) ++first[static_cast<size_t>(choices[4 * t])];
  CHECK(first == std::vector<int>(12, 4));
}

TEST_CASE("zipf: the i-th expert is chosen in proportion to i^-s, by every rank") {
  const RoutingQuery q = {.layer = 1, .ranks = 4, .tokens = 1000, .experts = 16};
  for (const double s : {0.0, 0.7, 1.2, 2.5}) {
    check_shares(summed(workload("zipf", {{"s", s}}, 1), q, 50), zipf_shares(16, s));
  }
}

TEST_CASE("first choices follow popularity, second ones what is left of it") {
  // Of two draws without replacement the second is e with sum over d != e of p_d p_e / (1 - p_d).
  const RoutingQuery q = {.ranks = 1, .tokens = 200000, .experts = 5, .k = 2};
  const std::vector<int32_t> choices = choices_of(workload("zipf", {{"s", 2}}, 7), q, 0);
  std::vector<int64_t> first(5), second(5);
  for (size_t t = 0; t < 200000; ++t) {
    ++first[static_cast<size_t>(choices[2 * t])];
    ++second[static_cast<size_t>(choices[2 * t + 1])];
  }
  std::vector<size_t> order = {0, 1, 2, 3, 4};
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return first[a] > first[b]; });
  const std::vector<double> p = zipf_shares(5, 2);
  for (size_t i = 0; i < 5; ++i) {
    double then = 0;
    for (size_t d = 0; d < 5; ++d) then += d == i ? 0 : p[d] * p[i] / (1 - p[d]);
    CHECK(near(first[order[i]], q.tokens, p[i]));
    CHECK(near(second[order[i]], q.tokens, then));
  }
}

TEST_CASE("where popularity leaves nothing the further choices are even") {
  const RoutingQuery q = {.ranks = 1, .tokens = 30000, .experts = 4, .k = 2};
  const ExpertCounts loads = workload("hot_expert", {{"share", 1}}, 7).loads(q);
  const int64_t hot = hottest(loads);
  for (int64_t e = 0; e < 4; ++e) {
    CHECK((e == hot ? loads.at(0, e) == q.tokens : near(loads.at(0, e), q.tokens, 1 / 3.0)));
  }
}

TEST_CASE("log_normal: the logarithm of popularity has the given spread") {
  const RoutingQuery q = {.ranks = 2, .tokens = 1000000, .experts = 1000};
  const ExpertCounts loads = workload("log_normal", {{"sigma", 0.8}}, 4).loads(q);
  double sum = 0, squares = 0;
  for (const int64_t n : by_expert(loads)) {
    sum += std::log(static_cast<double>(n));
    squares += std::log(static_cast<double>(n)) * std::log(static_cast<double>(n));
  }
  const double mean = sum / 1000, sd = std::sqrt(squares / 1000 - mean * mean);
  CHECK(sd == Approx(0.8).epsilon(5 / std::sqrt(2 * 1000.0)));  // of a sample of 1000
}

TEST_CASE("hot_expert: one expert gets the share of every rank, another one in each layer") {
  RoutingQuery q = {.ranks = 4, .tokens = 1000, .experts = 16};
  const RoutingModel routing = workload("hot_expert", {{"share", 0.4}}, 2);
  std::set<int64_t> hot;
  for (q.layer = 0; q.layer < 6; ++q.layer) {
    const ExpertCounts loads = summed(routing, q, 20);
    check_shares(loads, hot_shares(16, 1, 0.4));
    hot.insert(hottest(loads));
  }
  CHECK(hot.size() > 2);
}

TEST_CASE("hot_rank: the experts of one rank get the share") {
  RoutingQuery q = {.ranks = 4, .tokens = 1000, .experts = 16};
  const RoutingModel routing = workload("hot_rank", {{"share", 0.6}}, 2);
  for (q.layer = 0; q.layer < 4; ++q.layer) {
    const ExpertCounts loads = summed(routing, q, 20);
    check_shares(loads, hot_shares(16, 4, 0.6));
    const int64_t rank = hottest(loads) / 4;
    int64_t there = 0;
    for (int64_t e = 4 * rank; e < 4 * rank + 4; ++e) there += loads.of_expert(e);
    CHECK(near(there, loads.total(), 0.6));
  }
}

TEST_CASE("spread_hot: the hot experts lie on different ranks") {
  RoutingQuery q = {.ranks = 4, .tokens = 1000, .experts = 16};
  const RoutingModel routing = workload("spread_hot", {{"share", 0.6}, {"hot", 4}}, 2);
  for (q.layer = 0; q.layer < 4; ++q.layer) {
    const ExpertCounts loads = summed(routing, q, 20);
    check_shares(loads, hot_shares(16, 4, 0.6));
    for (int64_t rank = 0; rank < 4; ++rank) {
      int64_t there = 0;
      for (int64_t e = 4 * rank; e < 4 * rank + 4; ++e) there += loads.of_expert(e);
      CHECK(near(there, loads.total(), 0.25));
    }
  }
}

TEST_CASE(
    "source_ragged: ranks differ in tokens, the same in all layers, and in what they choose") {
  RoutingQuery q = {.step = 5, .ranks = 16, .tokens = 4000, .experts = 8};
  const RoutingModel routing = workload("source_ragged", {{"least", 0.25}, {"sigma", 1}}, 2);
  std::set<int64_t> totals;
  const ExpertCounts first = routing.loads(q);
  q.layer = 3;
  const ExpertCounts other = routing.loads(q);
  const auto tokens = [](const ExpertCounts& loads, int64_t r) {
    int64_t sum = 0;
    for (int64_t e = 0; e < loads.experts; ++e) sum += loads.at(r, e);
    return sum;
  };
  double distance = 0;
  for (int64_t r = 0; r < q.ranks; ++r) {
    CHECK(tokens(first, r) == tokens(other, r));
    CHECK(tokens(first, r) >= 1000);
    CHECK(tokens(first, r) <= 4000);
    totals.insert(tokens(first, r));
    for (int64_t e = 0; e < q.experts; ++e) {
      const int64_t beside = (r + 1) % q.ranks;
      distance += std::abs(static_cast<double>(first.at(r, e)) / tokens(first, r) -
                           static_cast<double>(first.at(beside, e)) / tokens(first, beside));
    }
  }
  CHECK(totals.size() > 12);
  CHECK(distance / 2 / static_cast<double>(q.ranks) > 0.2);  // mean total variation
  const std::vector<int32_t> choices = choices_of(routing, q, 0);
  const auto chosen = static_cast<std::ptrdiff_t>(tokens(first, 0));
  CHECK(std::count(choices.begin(), choices.begin() + chosen, -1) == 0);
  CHECK(std::count(choices.begin() + chosen, choices.end(), -1) == 4000 - chosen);
}

TEST_CASE("zero_token_rank: one rank chooses nothing, in any step and layer") {
  RoutingQuery q = {.ranks = 5, .tokens = 100, .experts = 8, .k = 2};
  const RoutingModel routing = workload("zero_token_rank", {}, 2);
  std::set<int64_t> empty;
  for (q.step = 0; q.step < 3; ++q.step) {
    for (q.layer = 0; q.layer < 3; ++q.layer) {
      const ExpertCounts loads = routing.loads(q);
      CHECK(loads.total() == 4 * 100 * 2);
      for (int64_t r = 0; r < 5; ++r) {
        const auto row = loads.rows.begin() + r * 8;
        if (std::all_of(row, row + 8, [](int64_t n) { return n == 0; })) empty.insert(r);
      }
    }
  }
  CHECK(empty.size() == 1);
}

TEST_CASE("rotating_hotspot: the hot expert moves on every period and comes to all") {
  RoutingQuery q = {.layer = 1, .ranks = 2, .tokens = 500, .experts = 6};
  const RoutingModel routing = workload("rotating_hotspot", {{"period", 4}, {"share", 0.7}}, 2);
  std::vector<int64_t> hot;
  for (q.step = 0; q.step < 24; ++q.step) {
    const ExpertCounts loads = routing.loads(q);
    hot.push_back(hottest(loads));
    CHECK(near(loads.of_expert(hot.back()), 1000, 0.7));
    if (q.step % 4 != 0) CHECK(hot[static_cast<size_t>(q.step - 1)] == hot.back());
  }
  CHECK(std::set<int64_t>(hot.begin(), hot.end()).size() == 6);
}

TEST_CASE("burst: in so many stretches an expert is hot, in the others none") {
  RoutingQuery q = {.ranks = 2, .tokens = 1000, .experts = 8};
  const RoutingModel routing =
      workload("burst", {{"chance", 0.3}, {"length", 5}, {"share", 0.6}}, 2);
  int64_t bursts = 0;
  for (int64_t stretch = 0; stretch < 400; ++stretch) {
    q.step = 5 * stretch;
    const ExpertCounts begin = routing.loads(q);
    q.step += 4;
    const ExpertCounts end = routing.loads(q);
    const bool hot = begin.of_expert(hottest(begin)) > 700;
    CHECK(near(begin.of_expert(hottest(begin)), 2000, 0.6) == hot);
    CHECK((end.of_expert(hottest(end)) > 700) == hot);
    if (hot) CHECK(hottest(begin) == hottest(end));
    bursts += hot ? 1 : 0;
  }
  CHECK(near(bursts, 400, 0.3));
}

TEST_CASE("drift: log popularity follows an AR(1) over steps") {
  constexpr double kDrift = 0.2, kMemory = 20;
  constexpr int64_t kSteps = 3000, kExperts = 8;
  RoutingQuery q = {.ranks = 1, .tokens = 4000, .experts = kExperts};
  const RoutingModel routing =
      workload("zipf", {{"s", 0}, {"drift", kDrift}, {"memory", kMemory}}, 3);
  // Deviations from the mean over experts, in which the normalisation cancels.
  std::vector<std::vector<double>> x;
  for (q.step = 0; q.step < kSteps; ++q.step) {
    x.emplace_back();
    double mean = 0;
    for (const int64_t n : by_expert(routing.loads(q))) {
      x.back().push_back(std::log(static_cast<double>(n)));
      mean += x.back().back() / kExperts;
    }
    for (double& value : x.back()) value -= mean;
  }
  const auto covariance = [&](size_t lag) {
    double sum = 0;
    for (size_t n = lag; n < x.size(); ++n) {
      for (size_t e = 0; e < kExperts; ++e) sum += x[n][e] * x[n - lag][e];
    }
    return sum / static_cast<double>((x.size() - lag) * kExperts);
  };
  const double phi = std::exp(-1 / kMemory), around = 1 - 1.0 / kExperts;
  const double variance = kDrift * kDrift / (1 - phi * phi) * around;
  // About kSteps / (2 kMemory) * (kExperts - 1) independent samples: 525, so 5 sd are a third.
  CHECK(covariance(0) == Approx(variance).epsilon(0.31));
  CHECK(covariance(1) / covariance(0) == Approx(phi).margin(0.02));
  CHECK(covariance(20) / covariance(0) == Approx(std::exp(-1.0)).margin(0.15));
}

TEST_CASE("a share of hot experts stays under drift") {
  const RoutingQuery q = {.step = 40, .ranks = 2, .tokens = 100000, .experts = 8};
  const ExpertCounts loads = workload("hot_expert", {{"share", 0.4}, {"drift", 0.3}}, 3).loads(q);
  CHECK(near(loads.of_expert(hottest(loads)), 200000, 0.4));
}

TEST_CASE("a chain step keeps popularity and has the masses asked for, where both can be") {
  Rng rng(8);
  int exact = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const auto n = static_cast<size_t>(2 + 2 * rng.below(10) + (trial % 4 == 0 ? 1 : 0));
    std::vector<double> p(n);
    for (double& one : p) one = std::exp(rng.uniform() * 2);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& one : p) one /= sum;
    const double top1 = 0.9 * rng.uniform(), top2 = top1 + rng.uniform() * (0.95 - top1);
    const ChainStep step = chain_step(p, top1, top2);
    const double rest = 1 - step.same - step.beside;
    REQUIRE(rest >= -1e-12);
    double mass1 = 0, mass2 = 0;
    std::vector<double> next(n);
    for (size_t c = 0; c < n; ++c) {
      std::vector<double> row(n);
      for (size_t d = 0; d < n; ++d) row[d] = rest * step.fresh[d];
      const auto other =
          static_cast<size_t>(neighbour(static_cast<int64_t>(c), static_cast<int64_t>(n)));
      row[c] += step.same;
      row[other] += step.beside;
      for (size_t d = 0; d < n; ++d) next[d] += p[c] * row[d];
      mass1 += p[c] * row[c];
      mass2 += p[c] * (row[c] + (other == c ? 0 : row[other]));
    }
    for (size_t d = 0; d < n; ++d) REQUIRE(next[d] == Approx(p[d]).margin(1e-12));
    const bool inside = step.same > 0 && step.beside > 0 && rest > 1e-9 && n % 2 == 0;
    if (inside && std::abs(mass2 - top2) < 1e-9) ++exact;
    if (inside && std::abs(mass2 - top2) < 1e-9) REQUIRE(mass1 == Approx(top1).margin(1e-9));
  }
  CHECK(exact > 50);
}

namespace {

// Mass of the likeliest and the two likeliest next experts, means over the tokens of layer `layer`.
std::pair<double, double> next_masses(const RoutingModel& routing, RoutingQuery q, int64_t layer) {
  q.layer = layer;
  const std::vector<int32_t> from = choices_of(routing, q, 0);
  q.layer = layer + 1;
  const std::vector<int32_t> to = choices_of(routing, q, 0);
  ExpertCounts joint(q.experts, q.experts);
  for (size_t t = 0; t < from.size(); ++t) ++joint.at(from[t], to[t]);
  double one = 0, two = 0;
  for (int64_t e = 0; e < q.experts; ++e) {
    std::vector<int64_t> row(joint.rows.begin() + e * q.experts,
                             joint.rows.begin() + (e + 1) * q.experts);
    std::sort(row.rbegin(), row.rend());
    one += static_cast<double>(row[0]);
    two += static_cast<double>(row[0] + row[1]);
  }
  return {one / static_cast<double>(from.size()), two / static_cast<double>(from.size())};
}

}  // namespace

TEST_CASE("markov: popularity by the ratio in every layer, the next expert by the masses") {
  RoutingQuery q = {.ranks = 1, .tokens = 200000, .experts = 16};
  const RoutingModel routing = workload("markov", {}, 6);
  for (q.layer = 0; q.layer < 6; ++q.layer) {
    check_shares(routing.loads(q), zipf_shares(16, std::log(5.56) / std::log(16)));
  }
  for (const int64_t layer : {0, 4}) {
    const auto [one, two] = next_masses(routing, q, layer);
    CHECK(one == Approx(0.4194).margin(0.01));
    CHECK(two >= 0.5459 - 0.01);  // the second likeliest may be a popular expert
    CHECK(two <= 0.5459 + 0.03);
  }
}

TEST_CASE("markov: masses rise with depth") {
  const RoutingQuery q = {.ranks = 1, .tokens = 100000, .experts = 16};
  const RoutingModel routing = workload("markov", {{"rise", 0.2}}, 6);
  for (const int64_t layer : {0, 2, 5}) {
    const double missing = (1 - 0.4194) * std::pow(0.8, static_cast<double>(layer));
    CHECK(next_masses(routing, q, layer).first == Approx(1 - missing).margin(0.02));
  }
}

TEST_CASE("any popularity may be chained") {
  const RoutingQuery q = {.layer = 3, .ranks = 1, .tokens = 100000, .experts = 16};
  const RoutingModel routing = workload("zipf", {{"s", 0.5}, {"top1", 0.5}, {"top2", 0.6}}, 6);
  check_shares(routing.loads(q), zipf_shares(16, 0.5));
  CHECK(next_masses(routing, q, 2).first == Approx(0.5).margin(0.01));
  const RoutingModel independent = workload("zipf", {{"s", 0.5}}, 6);
  CHECK(next_masses(independent, q, 2).first < 0.25);
}

TEST_CASE(
    "a workload's name shows its first option, what differs from the defaults, and the seed") {
  CHECK(workload("zipf", {{"drift", 0.02}}, 3).name == "zipf(s=1.2, drift=0.02, seed=3)");
  CHECK(workload("balanced", {}, 3).name == "balanced(seed=3)");
}

TEST_CASE("wrong workloads, options and queries are named") {
  CHECK_THROWS_WITH(workload("zpif", {}, 1), Contains("Did you mean 'zipf'?"));
  CHECK_THROWS_WITH(workload("zipf", {{"sigm", 1}}, 1), Contains("option of workload zipf 'sigm'"));
  CHECK_THROWS_WITH(workload("balanced", {{"s", 1}}, 1),
                    Contains("has no options, but 's' was given"));
  CHECK_THROWS_WITH(workload("zipf", {{"s", -1}}, 1),
                    Contains("s = -1 is not allowed; give a number from 0 to 20"));
  CHECK_THROWS_WITH(workload("zipf", {{"s", NAN}}, 1), Contains("s = nan is not allowed"));
  CHECK_THROWS_WITH(workload("burst", {{"length", 2.5}}, 1), Contains("a whole number"));
  CHECK_THROWS_WITH(workload("zipf", {}, 1).loads({.ranks = 1, .tokens = 4, .experts = 2, .k = 3}),
                    Contains("k = 3 choices per token, allowed: 1 to experts = 2"));
  CHECK_THROWS_WITH(workload("zero_token_rank", {}, 1).loads({.tokens = 4, .experts = 2}),
                    Contains("give 2 ranks or more"));
}
