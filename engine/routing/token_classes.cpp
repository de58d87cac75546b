#include "engine/routing/token_classes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/routing/sampler.h"

namespace moe {
namespace {

enum Purpose : int64_t { kDeal, kDriftOf, kClassOf, kStrayOf };

uint32_t key(const TokenClasses& spec, Purpose purpose, std::initializer_list<int64_t> on) {
  const uint32_t own = stream_key(spec.seed, RandomStream::kTokens, {-1, purpose});
  return stream_key(own, RandomStream::kTokens, on);
}

/// Returns a uniform number in (0, 1).
double uniform(uint64_t index, uint32_t key) {
  return (hash32(index, key) + 0.5) * 0x1p-32;
}

void normalise(std::vector<double>& share) {
  const double sum = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& s : share) s /= sum;
}

/// Returns the share of each class: [classes]. step < 0: without drift.
std::vector<double> class_shares(const TokenClasses& spec, int64_t step) {
  std::vector<double> share(static_cast<size_t>(spec.classes));
  const uint32_t drift = key(spec, kDriftOf, {step});
  for (size_t c = 0; c < share.size(); ++c) {
    share[c] = std::pow(static_cast<double>(c + 1), -spec.skew);
    if (step < 0 || spec.drift == 0) continue;
    // Box-Muller
    const double u = uniform(2 * c, drift), v = uniform(2 * c + 1, drift);
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
    share[c] *= std::exp(spec.drift * normal);
  }
  normalise(share);
  return share;
}

/// Returns the expert of each class in `layer`: [classes]. Classes are taken in random order; each
/// gets an expert drawn in proportion to the share of choices that the expert still lacks.
std::vector<int32_t> deal(const TokenClasses& spec, int64_t layer, int64_t experts) {
  std::vector<double> lacks(static_cast<size_t>(experts));
  const double steps = std::max<double>(1, static_cast<double>(experts - 1));
  const auto order_of_experts = permutation(experts, key(spec, kDeal, {layer, 0}));
  for (size_t i = 0; i < lacks.size(); ++i) {
    lacks[static_cast<size_t>(order_of_experts[i])] =
        std::pow(spec.ratio, -static_cast<double>(i) / steps);
  }
  normalise(lacks);
  const std::vector<double> share = class_shares(spec, -1);
  const uint32_t draws = key(spec, kDeal, {layer, 1});
  std::vector<int32_t> expert_of(share.size());
  for (const int32_t c : permutation(spec.classes, key(spec, kDeal, {layer, 2}))) {
    double all = 0;
    for (const double lack : lacks) all += std::max(lack, 0.0);
    double left = uniform(static_cast<uint64_t>(c), draws) * all;
    size_t e = 0, last = 0;
    for (; e < lacks.size(); ++e) {
      if (lacks[e] <= 0) continue;
      last = e;
      if (left < lacks[e]) break;
      left -= lacks[e];
    }
    const size_t to = e < lacks.size() ? e : last;
    expert_of[static_cast<size_t>(c)] = static_cast<int32_t>(to);
    lacks[to] -= share[static_cast<size_t>(c)];
  }
  return expert_of;
}

void route(const TokenClasses& spec, const RoutingQuery& q, int64_t rank,
           std::span<int32_t> choices) {
  if (q.k > q.experts)
    throw user_error("token_classes: k = {} choices per token, allowed: at most the {} experts",
                     q.k, q.experts);
  const std::vector<int32_t> expert_of = deal(spec, q.layer, q.experts);
  const AliasTable table(class_shares(spec, q.step));
  const uint32_t classes = key(spec, kClassOf, {q.step, rank});
  const uint32_t strays = key(spec, kStrayOf, {q.step, rank, q.layer});
  const auto stray = static_cast<uint64_t>(spec.stray * 0x1p32);
  const auto experts = static_cast<uint64_t>(q.experts);
  const auto k = static_cast<uint64_t>(q.k), tokens = static_cast<uint64_t>(q.tokens);
  for (uint64_t t = 0; t < tokens; ++t) {
    const auto own =
        static_cast<uint64_t>(expert_of[static_cast<size_t>(table.draw(hash32(t, classes)))]);
    const uint64_t other = hash32(t, ~strays) * experts >> 32;
    // Has no branch, because the processor could not predict one.
    const uint64_t strayed = -static_cast<uint64_t>(hash32(t, strays) < stray);
    const uint64_t e = own ^ ((own ^ other) & strayed);
    for (uint64_t j = 0; j < k; ++j) {
      choices[t * k + j] = static_cast<int32_t>(e + j < experts ? e + j : e + j - experts);
    }
  }
}

}  // namespace

std::vector<OptionSpec> token_class_options() {
  return {
      integer_option("classes", 64, 1, 1e6, "number of classes of tokens"),
      number_option("skew", 1, 0, 20, "class i is chosen in proportion to i^-skew"),
      number_option("ratio", 4, 1, 1e6,
                    "popularity of the most popular expert divided by that of the least popular "
                    "one, when classes are assigned to experts"),
      number_option("stray", 0, 0, 1, "share of choices that ignore the class: any expert"),
      number_option("drift", 0, 0, 20,
                    "standard deviation of a class's log popularity, drawn again in each step")};
}

RoutingModel token_classes(const TokenClasses& spec) {
  RoutingModel routing;
  routing.route = [spec](const RoutingQuery& q, int64_t rank, std::span<int32_t> choices) {
    route(spec, q, rank, choices);
  };
  routing.loads = [spec](const RoutingQuery& q) {
    ExpertCounts loads(q.ranks, q.experts);
    std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k));
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      route(spec, q, rank, choices);
      for (const int32_t e : choices) ++loads.at(rank, e);
    }
    return loads;
  };
  return routing;
}

}  // namespace moe
