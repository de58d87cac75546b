#include "engine/dispatch/law.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/rng.h"

namespace moe::dispatch {
namespace {

constexpr int64_t kSampled = 8192;
constexpr uint64_t kSeed = 1;

}  // namespace

Choices sampled_choices(const Exchange& x, int64_t tokens, uint64_t seed) {
  Choices choices;
  Rng rng(seed);
  const auto E = static_cast<size_t>(x.experts), k = static_cast<size_t>(x.topk);
  const bool limited = x.top_groups > 0 && x.top_groups < x.groups;
  std::vector<double> score(E), best(static_cast<size_t>(limited ? x.groups : 1));
  std::vector<int32_t> order(E);
  for (int64_t rank = 0; rank <= x.ranks; ++rank) choices.first.push_back(rank * tokens);
  for (int64_t t = 0; t < choices.tokens(); ++t) {
    for (double& s : score) s = rng.uniform();
    if (limited) {
      std::fill(best.begin(), best.end(), 0);
      const size_t each = E / best.size();
      for (size_t e = 0; e < E; ++e) best[e / each] = std::max(best[e / each], score[e]);
      std::vector<double> sorted = best;
      std::sort(sorted.rbegin(), sorted.rend());
      const double least = sorted[static_cast<size_t>(x.top_groups) - 1];
      for (size_t e = 0; e < E; ++e) score[e] = best[e / each] < least ? -1 : score[e];
    }
    std::iota(order.begin(), order.end(), 0);
    const auto last = order.begin() + static_cast<int64_t>(k);
    std::nth_element(order.begin(), last - 1, order.end(), [&](int32_t a, int32_t b) {
      return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    choices.experts.insert(choices.experts.end(), order.begin(), last);
  }
  return choices;
}

Choices sampled_choices(const Exchange& x) {
  return sampled_choices(x, (kSampled + x.ranks - 1) / x.ranks, kSeed);
}

TokenRows token_rows(const Route& route, const Exchange& x, const Choices& choices, Way way) {
  const LinkRows on = rows_on(route, x, choices, way);
  const auto per_token = [&](int64_t rows) {
    return static_cast<double>(rows) / static_cast<double>(choices.tokens());
  };
  return {per_token(on.delivered), per_token(on.moved), per_token(ports_of(on.nic, x.ranks).total),
          per_token(ports_of(on.nvlink, x.ranks).total)};
}

double logical_rows(const Route& route, const Exchange& x, const Choices& choices) {
  const ExpertRows rows = expert_rows(x, choices);
  const Dedup by = route.there.front().dedup;
  const int64_t sent = by == Dedup::kChoice ? rows.choices
                       : by == Dedup::kRank ? rows.rank_rows
                                            : rows.node_rows;
  return static_cast<double>(sent) / static_cast<double>(choices.tokens());
}

Parts parts_us(const Law& law, const TokenRows& rows, const Call& call) {
  const double us_per_row = 1e6 * call.tokens * call.row_bytes;
  return {.start = law.latency_us + law.latency_us_per_log2_nodes * std::log2(call.nodes) +
                   law.expert_us * call.experts,
          .nic = us_per_row * rows.nic / (law.nic_efficiency * call.nic_bytes_per_s),
          .nvlink = us_per_row * rows.nvlink / (law.nvlink_efficiency * call.nvlink_bytes_per_s),
          .sm = (call.tokens * (law.token_us + rows.received * law.row_us) +
                 us_per_row * (rows.moved + law.token_rows) / law.sm_bytes_per_s) /
                std::pow(std::max(1.0, call.sms), law.sm_power)};
}

double time_us(const Law& law, const TokenRows& rows, const Call& call) {
  const Parts parts = parts_us(law, rows, call);
  const double most = std::max({parts.nic, parts.nvlink, parts.sm}), p = law.sharpness;
  double sum = 0;
  for (const double part : {parts.nic, parts.nvlink, parts.sm}) {
    sum += most > 0 ? std::pow(part / most, p) : 0;
  }
  return parts.start + most * std::pow(sum, 1 / p);
}

}  // namespace moe::dispatch
