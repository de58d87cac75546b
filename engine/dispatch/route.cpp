#include "engine/dispatch/route.h"

#include <algorithm>
#include <map>

#include "engine/base/errors.h"

namespace moe::dispatch {
namespace {

void check_placing(const Exchange& x) {
  if (x.expert_rank.empty()) return;
  std::vector<int64_t> held(static_cast<size_t>(x.ranks));
  for (size_t e = 0; e < x.expert_rank.size(); ++e) {
    const int32_t rank = x.expert_rank[e];
    if (rank < 0 || rank >= x.ranks) {
      throw user_error("expert_rank[{}]: {} is not a rank; give 1 to {}", e + 1, rank + 1, x.ranks);
    }
    ++held[static_cast<size_t>(rank)];
  }
  const auto [least, most] = std::minmax_element(held.begin(), held.end());
  if (static_cast<int64_t>(x.expert_rank.size()) != x.experts || *least != *most) {
    throw user_error(
        "expert_rank: has {} experts, {} to {} on a rank; give one entry for each of the {} "
        "experts, as many on each rank",
        x.expert_rank.size(), *least, *most, x.experts);
  }
}

void check_wire(const Exchange& x, Wire wire, Way way) {
  if (wire == Wire::kFp8 && way == Way::kCombine) {
    throw user_error("combine: fp8 is not allowed, since sums are rounded; give bf16 or fp32");
  }
  if (wire == Wire::kFp8 && x.hidden % 128 != 0) {
    throw user_error(
        "hidden: {} is not a multiple of 128, and fp8 has a scale per 128 numbers; give another, "
        "or dispatch = \"bf16\"",
        x.hidden);
  }
  if (payload_bytes(wire, x.hidden) % 16 != 0 && wire != Wire::kFp8) {
    throw user_error("hidden: {} numbers in {} are no multiple of 16 bytes, as copies need it",
                     x.hidden, name_of(wire));
  }
}

void check_bytes(const Route& route, const Exchange& x, Way way) {
  const Wire wire = route.wire(way);
  if (route.row_bytes(way) < payload_bytes(wire, x.hidden)) {
    throw user_error("{}_bytes: {} is less than the {} bytes of {} numbers in {}", name_of(way),
                     route.row_bytes(way), payload_bytes(wire, x.hidden), x.hidden, name_of(wire));
  }
}

void check_hops(const Route& route, const Exchange& x) {
  for (const std::vector<Hop>* hops : {&route.there, &route.back}) {
    for (const Hop& hop : *hops) {
      if (hop.group > 0 && (x.ranks % hop.group != 0)) {
        throw user_error("group: {} does not divide ranks = {}, so nodes would differ in size",
                         hop.group, x.ranks);
      }
    }
  }
  if (route.there.empty()) throw user_error("there: the list is empty; give a hop at least");
  if (route.there.back().forward == Forward::kRail ||
      route.there.back().forward == Forward::kLocal) {
    throw user_error("there: the last hop goes to '{}'; end with forward = \"none\"",
                     name_of(route.there.back().forward));
  }
}

void check_capacity(const Route& route, const Exchange& x, const Choices& choices, size_t rank) {
  std::map<int32_t, int64_t> used;
  for (int64_t t = choices.first[rank]; t < choices.first[rank + 1]; ++t) {
    for (const int32_t e : choices.of(t, x.topk)) {
      if (e >= 0 && ++used[e] > route.capacity) {
        throw user_error(
            "capacity: rank {} has more than {} choices of expert {}; give more, or 0 in place of "
            "choices that are dropped",
            rank + 1, route.capacity, e + 1);
      }
    }
  }
}

}  // namespace

bool Route::shares() const {
  return adds() || std::any_of(there.begin(), there.end(),
                               [](const Hop& hop) { return hop.dedup != Dedup::kChoice; });
}

void check(const Exchange& x, Wire dispatch, Wire combine) {
  if (x.ranks % x.ranks_per_node != 0) {
    throw user_error("ranks: {} is not a multiple of ranks_per_node = {}", x.ranks,
                     x.ranks_per_node);
  }
  if (x.experts % x.ranks != 0) {
    throw user_error("experts: {} is not a multiple of ranks = {}", x.experts, x.ranks);
  }
  if (x.topk > x.experts) {
    throw user_error("topk: {} is more than experts = {}", x.topk, x.experts);
  }
  check_placing(x);
  check_wire(x, dispatch, Way::kDispatch);
  check_wire(x, combine, Way::kCombine);
}

void check(const Route& route, const Exchange& x) {
  check(x, route.dispatch, route.combine);
  check_hops(route, x);
  check_bytes(route, x, Way::kDispatch);
  check_bytes(route, x, Way::kCombine);
}

void check(const Route& route, const Exchange& x, const Choices& choices) {
  std::vector<int64_t> seen, nodes;  // few, so that a search in order is quickest
  const auto add = [](std::vector<int64_t>& to, int64_t value) {
    if (std::find(to.begin(), to.end(), value) != to.end()) return false;
    to.push_back(value);
    return true;
  };
  for (size_t rank = 0; rank < static_cast<size_t>(x.ranks); ++rank) {
    const int64_t first = choices.first[rank], end = choices.first[rank + 1];
    if (route.to_all && end - first != choices.first[1]) {
      throw user_error("choices: rank {} has {} tokens and rank 1 {}; an all-gather needs as many",
                       rank + 1, end - first, choices.first[1]);
    }
    if (route.max_tokens > 0 && end - first > route.max_tokens) {
      throw user_error("max_tokens: rank {} has {} tokens, more than the {} of its buffers",
                       rank + 1, end - first, route.max_tokens);
    }
    for (int64_t t = first; t < end; ++t) {
      seen.clear(), nodes.clear();
      for (const int32_t e : choices.of(t, x.topk)) {
        if (e == -1) continue;
        const auto fail = [&](const std::string& what) {
          return user_error("choices[{}][{}]: {}", rank + 1, t - first + 1, what);
        };
        if (e < 0 || e >= x.experts) {
          throw fail(fmt::format("{} is not an expert; give 1 to experts = {}, or 0 for none",
                                 e + 1, x.experts));
        }
        if (!add(seen, e)) {
          throw fail(fmt::format("names expert {} twice; give each once", e + 1));
        }
        add(nodes, x.rank_of(e) / x.ranks_per_node);
        if (x.max_nodes > 0 && static_cast<int64_t>(nodes.size()) > x.max_nodes) {
          throw fail(fmt::format("reaches more than max_nodes = {} nodes", x.max_nodes));
        }
      }
    }
    if (route.capacity > 0) check_capacity(route, x, choices, rank);
  }
}

}  // namespace moe::dispatch
