// The rows that ranks send each other under a route: the one place that knows them, for counts,
// costs, simulation and execution.
#pragma once

#include <functional>
#include <utility>

#include "engine/dispatch/route.h"

namespace moe::dispatch {

/// The slots of a token are what its copies are for: its choices, or under an all-gather the ranks.
/// A slot has a target, the rank that computes it; -1: none. The rows of a source are made of
/// items: tokens with their slots, or with a capacity each place for a choice, filled or not.
struct Item {
  int64_t token = -1;            // -1: an empty place
  std::vector<int32_t> slots;    // of the token; of an empty place, one without meaning
  std::vector<int64_t> targets;  // [slots]: ranks
};

/// A row of one hop: `slots` are those that it serves.
struct Row {
  int64_t from = 0, to = 0, source = 0;
  int64_t token = -1;
  std::span<const int32_t> slots;
};

/// Walks over the rows of an exchange in an order that is the same on all ranks. The arguments,
/// which check() accepted, must outlive it.
class Walk {
 public:
  Walk(const Route& route, const Exchange& exchange, const Choices& choices)
      : route_(route), exchange_(exchange), choices_(choices) {}

  /// Slots of a token.
  int64_t slots() const { return route_.to_all ? exchange_.ranks : exchange_.topk; }
  int64_t hops(Way way) const;
  bool is_ring() const { return route_.there.front().forward == Forward::kRing; }
  /// Calls f for each row of a hop, those that stay on their rank among them.
  void rows(Way way, int64_t hop, const std::function<void(const Row&)>& f) const;
  /// From and to which rank a hop takes a row between a source and a target.
  std::pair<int64_t, int64_t> ends(Way way, int64_t hop, int64_t source, int64_t target) const;
  /// The hop inside nodes: the one of kLocal, or the one that reaches or leaves the experts.
  int64_t inner_hop(Way way) const;

 private:
  void items(int64_t source, const std::function<void(const Item&)>& f) const;
  const std::vector<Hop>& hops_of(Way way) const;
  Dedup dedup(Way way, const Hop& hop) const;
  int64_t next(const Hop& hop, int64_t number, int64_t at, int64_t source, int64_t target,
               Way way) const;

  const Route& route_;
  const Exchange& exchange_;
  const Choices& choices_;
};

/// Rows by link of one way: [ranks, ranks], from row to column. local: those that stay on their
/// rank in the hop inside nodes, under an all-gather only the source's own; delivered: all of this
/// hop; moved: those of all hops, also where they stay.
struct LinkRows {
  int64_t ranks = 0;
  std::vector<int64_t> nvlink, nic;
  int64_t local = 0, delivered = 0, moved = 0;
};
LinkRows rows_on(const Route& route, const Exchange& exchange, const Choices& choices, Way way);

/// Rows of each hop of one way from rank to rank, [hops][ranks, ranks], with those that stay.
std::vector<std::vector<int64_t>> hop_rows(const Route& route, const Exchange& exchange,
                                           const Choices& choices, Way way);
/// The rows of one hop of a route on which each choice is a row, whose choices need not be known
/// one by one. counts: of the choices of each source for each target, [ranks, ranks].
std::vector<int64_t> hop_rows(const Route& route, const Exchange& exchange,
                              const std::vector<int64_t>& counts, Way way, int64_t hop);

/// What leaves and enters each rank, [ranks], the sum, and the largest of both over the ranks.
struct PortRows {
  std::vector<int64_t> out, in;
  int64_t total = 0, max = 0;
};
PortRows ports_of(const std::vector<int64_t>& matrix, int64_t ranks);

/// Rows that experts compute. Padding: to 128 rows per expert that has any, as grouped GEMMs in fp8
/// need it.
struct ExpertRows {
  std::vector<int64_t> rows, padded_rows;                                               // [experts]
  std::vector<int64_t> padded_rows_per_rank, received_rows_per_rank, choices_per_rank;  // [ranks]
  int64_t choices = 0, rank_rows = 0, node_rows = 0, remote_node_rows = 0;
};
ExpertRows expert_rows(const Exchange& exchange, const Choices& choices);

/// Returns the rows for which each rank has space where it receives: [ranks].
std::vector<int64_t> received_rows(const Route& route, const Exchange& exchange,
                                   const ExpertRows& rows);

}  // namespace moe::dispatch
