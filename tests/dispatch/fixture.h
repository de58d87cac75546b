// Routes of known dispatchers and random choices.
#pragma once

#include "engine/base/rng.h"
#include "engine/dispatch/rows.h"

namespace moe::dispatch {

struct Named {
  const char* name;
  Route route;
};

inline Route route_of(std::vector<Hop> there, Reduce reduce) {
  Route route;
  route.there = std::move(there);
  route.reduce = reduce;
  route.dispatch = Wire::kBf16;
  return route;
}

/// Rows of 2 * hidden bytes both ways.
inline std::vector<Named> known_routes(const Exchange& x) {
  const Hop by_rank{Forward::kNone, Dedup::kRank}, rail{Forward::kRail, Dedup::kNode};
  Route all = route_of({rail, by_rank}, Reduce::kRankNode);
  all.to_all = true;
  Route ring = all;
  ring.there.assign(static_cast<size_t>(std::max<int64_t>(1, x.ranks - 1)),
                    {Forward::kRing, Dedup::kNode});
  ring.back = ring.there;
  std::vector<Named> named = {
      {"choice", route_of({{}}, Reduce::kNone)},
      {"rank", route_of({by_rank}, Reduce::kRank)},
      {"node", route_of({rail, by_rank}, Reduce::kRankNode)},
      {"node, one sum", route_of({rail, by_rank}, Reduce::kRank)},
      {"intra first", route_of({{Forward::kLocal, Dedup::kChoice}, {}}, Reduce::kNone)},
      {"inter first", route_of({{Forward::kRail, Dedup::kChoice}, {}}, Reduce::kNone)},
      {"to all", all},
      {"ring", ring},
  };
  for (Named& one : named) one.route.dispatch_bytes = one.route.combine_bytes = 2 * x.hidden;
  return named;
}

inline Exchange random_exchange(Rng& rng) {
  Exchange x;
  x.ranks_per_node = 1 + rng.below(4);
  x.ranks = x.ranks_per_node * (1 + rng.below(4));
  x.experts = x.ranks * (1 + rng.below(3));
  x.topk = 1 + rng.below(std::min<int64_t>(6, x.experts));
  x.hidden = 128;
  for (int32_t e = 0; e < x.experts; ++e) {
    x.expert_rank.push_back(static_cast<int32_t>((e * 7 + 3) % x.experts % x.ranks));
  }
  // Experts of a rank are not neighbours; where 7 divides their number the map is the identity's.
  if (x.experts % 7 == 0) x.expert_rank.clear();
  return x;
}

/// As many tokens on each rank, a few choices dropped.
inline Choices random_choices(const Exchange& x, Rng& rng, bool equal) {
  Choices choices{{0}, {}};
  std::vector<int32_t> left;
  for (int64_t rank = 0; rank < x.ranks; ++rank) {
    const int64_t tokens = equal ? 3 : rng.below(6);
    for (int64_t t = 0; t < tokens; ++t) {
      left.clear();
      for (int32_t e = 0; e < x.experts; ++e) left.push_back(e);
      for (int64_t i = 0; i < x.topk; ++i) {
        const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(left.size())));
        choices.experts.push_back(rng.below(8) == 0 ? -1 : left[at]);
        left.erase(left.begin() + static_cast<int64_t>(at));
      }
    }
    choices.first.push_back(choices.first.back() + tokens);
  }
  return choices;
}

}  // namespace moe::dispatch
