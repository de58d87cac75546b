#include "engine/routing/skew.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr double kMostExponent = 20;

/// Returns how often a token chooses each class, on average: of k choices without taking a class
/// twice, as exponential clocks give them, 1 - exp(-x share) with x so that they add up to k. The
/// shares add up to 1.
std::vector<double> chosen(std::vector<double> share, int64_t k) {
  if (k == 1) return share;
  const auto wanted = static_cast<double>(k);
  std::vector<double> often(share.size());
  double x = wanted;
  for (int i = 0; i < 1000; ++i) {  // Newton's steps, all from below since the sum is concave in x
    double sum = 0, slope = 0;
    for (size_t c = 0; c < share.size(); ++c) {
      const double left = std::exp(-x * share[c]);
      often[c] = 1 - left;
      sum += often[c];
      slope += share[c] * left;
    }
    if (wanted - sum < 1e-9 * wanted) break;
    x += (wanted - sum) / slope;
  }
  return often;
}

/// Returns the expected choices of the rank with most, divided by the mean.
double max_over_mean(const RoutingQuery& q, std::span<const int32_t> expert_of, double s) {
  std::vector<double> share(expert_of.size()), of_expert(expert_of.size());
  for (size_t c = 0; c < share.size(); ++c) share[c] = std::pow(static_cast<double>(c + 1), -s);
  const double all = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& one : share) one /= all;
  share = chosen(std::move(share), q.k);
  for (size_t c = 0; c < share.size(); ++c) of_expert[static_cast<size_t>(expert_of[c])] = share[c];
  double most = 0;
  for (int64_t rank = 0; rank < num_holders(q); ++rank) {
    double sum = 0;
    for (const int32_t e : experts_on(q, rank)) sum += of_expert[static_cast<size_t>(e)];
    most = std::max(most, sum);
  }
  return most * static_cast<double>(q.group()) / static_cast<double>(q.k);
}

}  // namespace

int64_t num_holders(const RoutingQuery& query) {
  return std::min(query.group(), query.experts);
}

std::vector<int32_t> experts_on(const RoutingQuery& query, int64_t rank) {
  const int64_t n = num_holders(query);
  const auto first = [&](int64_t r) { return (r * query.experts + n - 1) / n; };
  std::vector<int32_t> experts(static_cast<size_t>(first(rank + 1) - first(rank)));
  std::iota(experts.begin(), experts.end(), static_cast<int32_t>(first(rank)));
  return experts;
}

double zipf_exponent(const RoutingQuery& query, std::span<const int32_t> expert_of, double wanted) {
  double lo = 0, hi = kMostExponent;
  const double most = max_over_mean(query, expert_of, hi),
               least = max_over_mean(query, expert_of, 0);
  if (wanted < least - 1e-9 || wanted > most) {
    throw user_error(
        "workload zipf: max_over_mean = {} is not reached with {} experts on {} ranks of a "
        "group and k = {}; "
        "allowed: {:.4g} to {:.4g}",
        wanted, query.experts, query.group(), query.k, least, most);
  }
  while (hi - lo > 1e-7) {
    const double s = (lo + hi) / 2;
    (max_over_mean(query, expert_of, s) < wanted ? lo : hi) = s;
  }
  return hi;
}

}  // namespace moe
