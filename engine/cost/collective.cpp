#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/cost/cost_model.h"
#include "engine/network/closed_form.h"

namespace moe {

double payload_bytes(const Graph& graph, OpId op, const WorkContext& context) {
  return graph.def(op).work(graph, graph.op(op), context).bytes;
}

Bytes wire_bytes(const Graph& graph, OpId op, const WorkContext& context) {
  if (graph.def(op).collective == Collective::kNone) return 0;
  const Group group = group_of(graph, graph.op(op));
  const Round round = round_of(graph, graph.op(op));
  const double ranks = static_cast<double>(group.size);
  switch (graph.def(op).collective) {
    case Collective::kNone:
      return 0;
    case Collective::kAllToAll:
    case Collective::kExperts:  // the expected bytes, as if sent evenly to all devices
      return std::llround(payload_bytes(graph, op, context) *
                          static_cast<double>(round.peers(group)) /
                          static_cast<double>(round.members(group)));
    case Collective::kAllReduce:
      return std::llround(2 * (ranks - 1) * std::floor(payload_bytes(graph, op, context) / ranks));
    case Collective::kShift:
    case Collective::kHandoff:
      return std::llround(payload_bytes(graph, op, context));
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return std::llround((ranks - 1) * std::floor(payload_bytes(graph, op, context) / ranks));
  }
  return 0;
}

namespace {

ReducePart part_of(Collective collective) {
  if (collective == Collective::kReduceScatter) return ReducePart::kReduceScatter;
  return collective == Collective::kAllGather ? ReducePart::kAllGather : ReducePart::kWhole;
}

/// Returns the bytes of all steps, summed per pair of devices.
std::vector<double> sum_of(const std::vector<std::vector<double>>& steps) {
  std::vector<double> bytes = steps[0];
  for (size_t s = 1; s < steps.size(); ++s) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] += steps[s][i];
  }
  return bytes;
}

/// Returns the bytes between all ranks, [ranks, ranks], of which each sends `bytes` to the next of
/// its group.
std::vector<double> to_next(const Group& group, int64_t ranks, double bytes) {
  std::vector<double> between(static_cast<size_t>(ranks * ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t next = group.member(r, (group.place(r) + 1) % group.size);
    between[static_cast<size_t>(r * ranks + next)] = bytes;
  }
  return between;
}

bool is_empty(const std::vector<double>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](double b) { return b == 0; });
}

}  // namespace

NetworkOp network_op(const Cluster& cluster, const Graph& graph, OpId op,
                     const RoutedWork& routed) {
  if (cluster.num_devices() != graph.num_ranks) {
    throw user_error(
        "cluster '{}' has {} devices, but graph '{}' runs on {} ranks; the numbers must be equal",
        cluster.name, cluster.num_devices(), graph.name, graph.num_ranks);
  }
  const double payload = payload_bytes(graph, op, routed.work);
  const Group group = group_of(graph, graph.op(op));
  const Collective collective = graph.def(op).collective;
  const int64_t rank = routed.rank;
  const auto exchange = [&](const std::vector<double>& bytes, const Round& round) {
    return AllToAll{.bytes = rank < 0 ? bytes : bytes_of_group(bytes, group, rank, graph.num_ranks),
                    .round = round,
                    .rank = rank};
  };
  switch (collective) {
    case Collective::kAllToAll:
    case Collective::kExperts: {
      const Round round = round_of(graph, graph.op(op));
      if (routed.steps != nullptr) return {exchange(sum_of(*routed.steps), {}), group};
      if (routed.bytes != nullptr) return {exchange(*routed.bytes, round), group};
      const double pair = payload / static_cast<double>(round.members(group));
      return {AllToAll{.bytes_per_pair = pair, .round = round, .rank = rank}, group};
    }
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return {AllReduce{.bytes = payload,
                        .algorithm = cluster.all_reduce,
                        .rank = rank,
                        .part = part_of(collective)},
              group};
    case Collective::kShift:
      return {exchange(to_next(group, graph.num_ranks, payload), {}), group};
    case Collective::kHandoff:
    case Collective::kNone:
      break;
  }
  MOE_CHECK(false, "op '{}' ({}) must be a collective among the ranks of a pipeline rank",
            graph.op(op).name, graph.def(op).name);
}

Nanoseconds collective_ns(const Cluster& cluster, const Graph& graph, OpId op,
                          const RoutedWork& routed) {
  if (graph.def(op).collective == Collective::kHandoff) {
    return send_ns(cluster, payload_bytes(graph, op, routed.work),
                   attr_int(graph.op(op), "far") != 0);
  }
  const auto alone = [&](const NetworkOp& transfer) {
    try {
      return alone_ns(cluster, transfer);
    } catch (const UserError& error) {
      throw user_error("op '{}': {}", graph.op(op).name, error.what());
    }
  };
  if (routed.steps == nullptr) return alone(network_op(cluster, graph, op, routed));
  TimeSum total;
  const Group group = group_of(graph, graph.op(op));
  for (const std::vector<double>& bytes : *routed.steps) {
    NetworkOp step{AllToAll{.bytes = bytes}};
    if (routed.rank >= 0) {
      step = {AllToAll{.bytes = bytes_of_group(bytes, group, routed.rank, graph.num_ranks),
                       .rank = routed.rank},
              group};
    }
    if (!is_empty(std::get<AllToAll>(step.what).bytes)) total += alone(step);  // else no time
  }
  return total.ns([&] {
    return with_links(
        fmt::format("op '{}', an all-to-all of {} steps,", graph.op(op).name, routed.steps->size()),
        cluster);
  });
}

std::optional<NetworkOp> transfer_on(const Cluster& cluster, const Graph& graph, OpId op,
                                     const RoutedWork& routed) {
  const Collective collective = graph.def(op).collective;
  if (collective == Collective::kNone || is_view(graph, graph.op(op))) return {};
  // It takes its closed form whatever else is on the links.
  if (collective == Collective::kHandoff) return {};
  // Steps that move nothing take no time; other all-to-alls take their start-up in any case.
  if (routed.steps != nullptr &&
      std::all_of(routed.steps->begin(), routed.steps->end(), is_empty)) {
    return {};
  }
  NetworkOp moved = network_op(cluster, graph, op, routed);
  const auto* const a2a = std::get_if<AllToAll>(&moved.what);
  const bool takes_time = a2a != nullptr && !is_empty(a2a->bytes);
  if (!takes_time && collective_ns(cluster, graph, op, routed) == 0) return {};
  return moved;
}

std::string CostModel::algorithm(const Graph& graph, OpId op) const {
  const std::optional<NetworkOp> moved = transfer(graph, op);
  const auto* const reduce = moved ? std::get_if<AllReduce>(&moved->what) : nullptr;
  return reduce == nullptr ? "" : name_of(algorithm_of(*network(), *reduce, moved->group));
}

InterpolatedTable::InterpolatedTable(std::vector<std::pair<double, double>> points)
    : points_(std::move(points)) {
  if (points_.size() < 2) {
    throw user_error(
        "a table of cluster.collectives has {} rows of (bytes, ns), but needs at least 2",
        points_.size());
  }
  for (size_t row = 0; row < points_.size(); ++row) {
    const auto [bytes, ns] = points_[row];
    if (!std::isfinite(bytes) || bytes < 0 || !std::isfinite(ns) || ns < 0) {
      throw user_error(
          "row {} of a table of cluster.collectives: (bytes, ns) = ({}, {}), allowed: finite "
          "numbers of at least 0",
          row + 1, bytes, ns);
    }
    if (row > 0 && bytes <= points_[row - 1].first) {
      throw user_error(
          "row {} of a table of cluster.collectives: bytes = {}, allowed: above the bytes of the "
          "row before, {}",
          row + 1, bytes, points_[row - 1].first);
    }
  }
}

Nanoseconds InterpolatedTable::at(double bytes) const {
  const auto above = std::upper_bound(
      points_.begin() + 1, points_.end() - 1, bytes,
      [](double value, const std::pair<double, double>& point) { return value < point.first; });
  const auto [x1, y1] = *above;
  const auto [x0, y0] = *(above - 1);
  const double ns = y0 + (y1 - y0) * (bytes - x0) / (x1 - x0);
  return checked_ns(std::max(ns, 0.0), [bytes] {
    return fmt::format("by its table in cluster.collectives, a collective of {:g} bytes", bytes);
  });
}

}  // namespace moe
