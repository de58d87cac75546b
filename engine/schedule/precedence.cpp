#include "engine/schedule/precedence.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

void connect(Dependencies& deps, OpId from, OpId to) {
  deps.succs[from.index()].push_back(to);
  deps.preds[to.index()].push_back(from);
}

/// Returns the shortest path through ops in `open` from `start` back to `start`; empty if there is
/// none.
std::vector<OpId> cycle_through(const Dependencies& deps, const std::vector<bool>& open,
                                OpId start) {
  std::vector<OpId> parent(open.size());
  std::vector<OpId> queue{start};
  for (size_t head = 0; head < queue.size(); ++head) {
    const OpId at = queue[head];
    for (const OpId next : deps.succs[at.index()]) {
      if (!open[next.index()]) continue;
      if (next == start) {
        std::vector<OpId> path;
        for (OpId op = at; op != start; op = parent[op.index()]) path.push_back(op);
        path.push_back(start);
        std::reverse(path.begin(), path.end());
        return path;
      }
      if (parent[next.index()].valid()) continue;
      parent[next.index()] = at;
      queue.push_back(next);
    }
  }
  return {};
}

/// Takes ops of which all neighbours on one side are taken out of `open`, again and again.
void peel(const std::vector<std::vector<OpId>>& before, const std::vector<std::vector<OpId>>& after,
          std::vector<bool>& open) {
  std::vector<size_t> waiting(open.size());
  std::vector<OpId> ready;
  for (size_t i = 0; i < open.size(); ++i) {
    if (!open[i]) continue;
    waiting[i] = static_cast<size_t>(std::count_if(before[i].begin(), before[i].end(),
                                                   [&open](OpId op) { return open[op.index()]; }));
    if (waiting[i] == 0) ready.emplace_back(static_cast<int64_t>(i));
  }
  while (!ready.empty()) {
    const OpId op = ready.back();
    ready.pop_back();
    open[op.index()] = false;
    for (const OpId next : after[op.index()]) {
      if (open[next.index()] && --waiting[next.index()] == 0) ready.push_back(next);
    }
  }
}

/// Returns, per op, whether it is on a cycle or between cycles.
std::vector<bool> ops_on_cycles(const Dependencies& deps) {
  std::vector<bool> open(deps.preds.size(), true);
  peel(deps.preds, deps.succs, open);
  peel(deps.succs, deps.preds, open);
  return open;
}

/// Returns the shortest cycle among those through one of the first ops that are on a cycle; their
/// number limits the time, since each op takes a search of the graph, and `explain` tries many
/// illegal schedules.
std::vector<OpId> shortest_cycle(const Graph& graph, const Dependencies& deps) {
  constexpr size_t kVisits = 1 << 17;
  const size_t sources = std::clamp<size_t>(kVisits / graph.num_ops(), 1, 256);
  const std::vector<bool> open = ops_on_cycles(deps);
  std::vector<OpId> best;
  size_t tried = 0;
  for (size_t i = 0; i < open.size() && tried < sources; ++i) {
    if (!open[i]) continue;
    std::vector<OpId> found = cycle_through(deps, open, OpId(static_cast<int64_t>(i)));
    if (found.empty()) continue;  // between cycles
    ++tried;
    if (best.empty() || found.size() < best.size()) best = std::move(found);
  }
  return best;
}

[[noreturn]] void fail_cycle(const Graph& graph, const Schedule& schedule,
                             const Dependencies& deps) {
  const std::vector<OpId> cycle = shortest_cycle(graph, deps);
  MOE_CHECK(
      !cycle.empty(),
      "the schedule has no topological order, so some ops must be on a cycle, but none was found");
  std::string text;
  for (size_t i = 0; i < cycle.size(); ++i) {
    const OpId from = cycle[i], to = cycle[(i + 1) % cycle.size()];
    text += fmt::format("\n  '{}' must wait for '{}' ({})", graph.op(to).name, graph.op(from).name,
                        edge_text(graph, schedule, from, to));
  }
  throw run_error("illegal schedule: {} ops wait for each other in a cycle:{}", cycle.size(), text);
}

}  // namespace

Precedence::Precedence(const Graph& graph, const Schedule& schedule, const LaneOrders* orders)
    : deps(dependencies(graph)) {
  const auto exists = [&graph](OpId op) { return op.valid() && op.index() < graph.num_ops(); };
  for (const OrderEdge& edge : schedule.order_edges) {
    if (!exists(edge.from) || !exists(edge.to)) {
      throw run_error(
          "illegal schedule: an order edge of stage '{}' ({}) is from op {} to op {}, but the "
          "graph has ops 0 to {}",
          edge.stage, edge.why, edge.from.value, edge.to.value, graph.num_ops() - 1);
    }
    connect(deps, edge.from, edge.to);
  }
  if (orders == nullptr) return;
  for (size_t l = 0; l < orders->lanes.size(); ++l) {
    if (schedule.picks(LaneId(static_cast<int64_t>(l)))) continue;
    const std::vector<OpId>& lane = orders->lanes[l];
    for (size_t i = 1; i < lane.size(); ++i) connect(deps, lane[i - 1], lane[i]);
  }
}

std::vector<OpId> Precedence::order(const Graph& graph, const Schedule& schedule) const {
  try {
    return topological_order(graph, deps);
  } catch (const UserError&) {  // a cycle; fail_cycle() also names the stages of its edges
    fail_cycle(graph, schedule, deps);
  }
}

std::string edge_text(const Graph& graph, const Schedule& schedule, OpId from, OpId to) {
  const auto& inputs = graph.op(to).inputs;
  for (const TensorId t : graph.op(from).outputs) {
    if (std::find(inputs.begin(), inputs.end(), t) != inputs.end()) {
      return fmt::format("data, tensor '{}'", graph.tensor(t).name);
    }
  }
  for (const OrderEdge& edge : schedule.order_edges) {
    if (edge.from == from && edge.to == to) {
      return fmt::format("order edge of stage '{}': {}", edge.stage, edge.why);
    }
  }
  const Dependencies graph_edges = dependencies(graph);
  const std::vector<OpId>& preds = graph_edges.preds[to.index()];
  if (std::binary_search(preds.begin(), preds.end(), from)) return "overwrites what it reads";
  return fmt::format("lane '{}'", schedule.lanes[schedule.lane_of[to.index()].index()].name);
}

}  // namespace moe
