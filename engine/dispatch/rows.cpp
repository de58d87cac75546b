#include "engine/dispatch/rows.h"

#include <algorithm>

namespace moe::dispatch {
namespace {

constexpr int64_t kPadding = 128;

// A slot on its hop; those of one key are one row.
struct Move {
  uint64_t key;
  int32_t slot;
  int64_t from, to;
};

int64_t& at(std::vector<int64_t>& list, int64_t i) {
  return list[static_cast<size_t>(i)];
}

}  // namespace

const std::vector<Hop>& Walk::hops_of(Way way) const {
  return way == Way::kCombine && !route_.back.empty() ? route_.back : route_.there;
}

int64_t Walk::hops(Way way) const {
  return static_cast<int64_t>(hops_of(way).size());
}

Dedup Walk::dedup(Way way, const Hop& hop) const {
  if (way == Way::kDispatch) return hop.dedup;
  if (route_.reduce == Reduce::kNone) return Dedup::kChoice;
  return route_.reduce == Reduce::kRankNode && hop.dedup == Dedup::kNode ? Dedup::kNode
                                                                         : Dedup::kRank;
}

int64_t Walk::next(const Hop& hop, int64_t number, int64_t at, int64_t source, int64_t target,
                   Way way) const {
  const int64_t node = hop.group > 0 ? hop.group : exchange_.ranks_per_node;
  const int64_t end = way == Way::kDispatch ? target : source;
  switch (hop.forward) {
    case Forward::kNone:
      return end;
    case Forward::kRail:
      return end / node * node + at % node;
    case Forward::kLocal:
      return at / node * node + end % node;
    case Forward::kRing:
      break;
  }
  // On the way back a sum passes its ranks one after the other, and takes their outputs along.
  const int64_t R = exchange_.ranks, moves = number + (way == Way::kDispatch ? 0 : 1);
  return at != end && (at - source + R) % R == moves ? (at + 1) % R : at;
}

void Walk::items(int64_t source, const std::function<void(const Item&)>& f) const {
  const auto rank = static_cast<size_t>(source);
  const int64_t first = choices_.first[rank], end = choices_.first[rank + 1];
  Item item;
  if (route_.capacity > 0) {
    for (int64_t e = 0; e < exchange_.experts; ++e) {
      int64_t places = 0;
      item.targets = {exchange_.rank_of(e)};
      for (int64_t t = first; t < end; ++t) {
        const auto of = choices_.of(t, exchange_.topk);
        const auto chosen = std::find(of.begin(), of.end(), e);
        if (chosen == of.end()) continue;
        ++places;
        f({t, {static_cast<int32_t>(chosen - of.begin())}, item.targets});
      }
      for (; places < route_.capacity; ++places) f({-1, {0}, item.targets});
    }
    return;
  }
  for (item.token = first; item.token < end; ++item.token) {
    item.slots.clear(), item.targets.clear();
    for (int32_t slot = 0; slot < slots(); ++slot) {
      const int32_t e =
          route_.to_all ? slot : choices_.of(item.token, exchange_.topk)[static_cast<size_t>(slot)];
      if (e < 0) continue;
      item.slots.push_back(slot);
      item.targets.push_back(route_.to_all ? slot : exchange_.rank_of(e));
    }
    f(item);
  }
}

std::pair<int64_t, int64_t> Walk::ends(Way way, int64_t hop, int64_t source, int64_t target) const {
  const std::vector<Hop>& hops = hops_of(way);
  // Without hops of its own the way back goes the way there in reverse.
  const bool reversed = way == Way::kCombine && route_.back.empty();
  const int64_t steps = reversed ? static_cast<int64_t>(hops.size()) - hop - 1 : hop;
  const Way as = reversed ? Way::kDispatch : way;
  int64_t at = as == Way::kDispatch ? source : target;
  for (int64_t h = 0; h < steps; ++h) {
    at = next(hops[static_cast<size_t>(h)], h, at, source, target, as);
  }
  const int64_t to = next(hops[static_cast<size_t>(steps)], steps, at, source, target, as);
  return reversed ? std::pair(to, at) : std::pair(at, to);
}

void Walk::rows(Way way, int64_t hop, const std::function<void(const Row&)>& f) const {
  const std::vector<Hop>& hops = hops_of(way);
  const bool reversed = way == Way::kCombine && route_.back.empty();
  const Dedup by = dedup(
      way, hops[reversed ? hops.size() - static_cast<size_t>(hop) - 1 : static_cast<size_t>(hop)]);
  const auto ranks = static_cast<uint64_t>(exchange_.ranks), most = static_cast<uint64_t>(slots());
  std::vector<Move> moves;
  std::vector<int32_t> served;
  for (int64_t source = 0; source < exchange_.ranks; ++source) {
    items(source, [&](const Item& item) {
      moves.clear();
      for (size_t i = 0; i < item.slots.size(); ++i) {
        const auto [from, to] = ends(way, hop, source, item.targets[i]);
        // Up to 65,536 ranks and 1,024 choices, so that it fits.
        uint64_t key = static_cast<uint64_t>(from) * ranks + static_cast<uint64_t>(to);
        if (by != Dedup::kNode) key = key * ranks + static_cast<uint64_t>(item.targets[i]);
        if (by == Dedup::kChoice) key = key * most + static_cast<uint64_t>(item.slots[i]);
        moves.push_back({key, item.slots[i], from, to});
      }
      std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
        return a.key != b.key ? a.key < b.key : a.slot < b.slot;
      });
      for (size_t i = 0, end; i < moves.size(); i = end) {
        served.clear();
        for (end = i; end < moves.size() && moves[end].key == moves[i].key; ++end) {
          served.push_back(moves[end].slot);
        }
        f({moves[i].from, moves[i].to, source, item.token, served});
      }
    });
  }
}

int64_t Walk::inner_hop(Way way) const {
  const auto local = std::find_if(route_.there.begin(), route_.there.end(),
                                  [](const Hop& h) { return h.forward == Forward::kLocal; });
  if (is_ring()) return 0;
  const int64_t last = hops(way) - 1;
  const int64_t hop = local == route_.there.end() ? last : local - route_.there.begin();
  return way == Way::kDispatch ? hop : last - hop;
}

LinkRows rows_on(const Route& route, const Exchange& x, const Choices& choices, Way way) {
  const Walk walk(route, x, choices);
  const auto size = static_cast<size_t>(x.ranks * x.ranks);
  LinkRows on{x.ranks, std::vector<int64_t>(size), std::vector<int64_t>(size)};
  for (int64_t hop = 0; hop < walk.hops(way); ++hop) {
    walk.rows(way, hop, [&](const Row& row) {
      const bool inner = hop == walk.inner_hop(way);
      ++on.moved;
      on.delivered += inner ? 1 : 0;
      if (row.from == row.to) {
        on.local += inner && (row.from == row.source || !route.to_all) ? 1 : 0;
        return;
      }
      const bool inside = row.from / x.ranks_per_node == row.to / x.ranks_per_node && route.nvlink;
      ++at(inside ? on.nvlink : on.nic, row.from * x.ranks + row.to);
    });
  }
  return on;
}

std::vector<std::vector<int64_t>> hop_rows(const Route& route, const Exchange& x,
                                           const Choices& choices, Way way) {
  const Walk walk(route, x, choices);
  std::vector<std::vector<int64_t>> hops;
  for (int64_t hop = 0; hop < walk.hops(way); ++hop) {
    auto& rows = hops.emplace_back(static_cast<size_t>(x.ranks * x.ranks));
    walk.rows(way, hop, [&](const Row& row) { ++at(rows, row.from * x.ranks + row.to); });
  }
  return hops;
}

std::vector<int64_t> hop_rows(const Route& route, const Exchange& x,
                              const std::vector<int64_t>& counts, Way way, int64_t hop) {
  const Choices none;
  const Walk walk(route, x, none);
  std::vector<int64_t> rows(counts.size());
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const auto pair = static_cast<int64_t>(i);
    const auto [from, to] = walk.ends(way, hop, pair / x.ranks, pair % x.ranks);
    at(rows, from * x.ranks + to) += counts[i];
  }
  return rows;
}

PortRows ports_of(const std::vector<int64_t>& matrix, int64_t ranks) {
  const auto n = static_cast<size_t>(ranks);
  PortRows ports{std::vector<int64_t>(n), std::vector<int64_t>(n)};
  for (size_t i = 0; i < matrix.size(); ++i) {
    ports.out[i / n] += matrix[i];
    ports.in[i % n] += matrix[i];
    ports.total += matrix[i];
  }
  for (const auto* side : {&ports.out, &ports.in}) {
    ports.max = std::max(ports.max, *std::max_element(side->begin(), side->end()));
  }
  return ports;
}

ExpertRows expert_rows(const Exchange& x, const Choices& choices) {
  const std::vector<int64_t> experts(static_cast<size_t>(x.experts)),
      ranks(static_cast<size_t>(x.ranks));
  ExpertRows all{experts, experts, ranks, ranks, ranks};
  std::vector<int64_t> on, nodes;
  for (int64_t source = 0; source < x.ranks; ++source) {
    for (int64_t t = choices.first[static_cast<size_t>(source)];
         t < choices.first[static_cast<size_t>(source) + 1]; ++t) {
      on.clear(), nodes.clear();
      for (const int32_t e : choices.of(t, x.topk)) {
        if (e < 0) continue;
        ++at(all.rows, e);
        on.push_back(x.rank_of(e));
        ++at(all.choices_per_rank, on.back());
        ++all.choices;
      }
      std::sort(on.begin(), on.end());
      on.erase(std::unique(on.begin(), on.end()), on.end());
      for (const int64_t rank : on) {
        ++at(all.received_rows_per_rank, rank);
        ++all.rank_rows;
        if (nodes.empty() || nodes.back() != rank / x.ranks_per_node) {
          nodes.push_back(rank / x.ranks_per_node);
          ++all.node_rows;
          all.remote_node_rows += nodes.back() != source / x.ranks_per_node ? 1 : 0;
        }
      }
    }
  }
  for (int64_t e = 0; e < x.experts; ++e) {
    at(all.padded_rows, e) = (at(all.rows, e) + kPadding - 1) / kPadding * kPadding;
    at(all.padded_rows_per_rank, x.rank_of(e)) += at(all.padded_rows, e);
  }
  return all;
}

std::vector<int64_t> received_rows(const Route& route, const Exchange& x, const ExpertRows& rows) {
  if (route.static_rows > 0) {
    return std::vector<int64_t>(static_cast<size_t>(x.ranks), route.static_rows);
  }
  return route.there.back().dedup == Dedup::kChoice ? rows.choices_per_rank
                                                    : rows.received_rows_per_rank;
}

}  // namespace moe::dispatch
