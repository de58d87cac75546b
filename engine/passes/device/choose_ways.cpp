#include "engine/passes/device/choose_ways.h"

#include <algorithm>

#include "engine/graph/op_def.h"

namespace moe {
namespace {

OpWays ways_of(const Graph& graph, OpId op) {
  const auto ways = graph.def(op).ways;
  OpWays all = ways != nullptr ? ways(graph, graph.op(op)) : OpWays();
  return all.names.size() > 1 ? all : OpWays();
}

/// The usual way is what no attribute means.
void set_way(Op& op, const OpWays& ways, size_t way) {
  if (way == 0) {
    op.attrs.erase(ways.attribute);
  } else {
    op.attrs[ways.attribute] = std::string(ways.names[way]);
  }
}

size_t quickest(Graph& graph, OpId op, const OpWays& ways, const CostModel& cost) {
  size_t best = 0;
  Nanoseconds least = 0;
  for (size_t way = 0; way < ways.names.size(); ++way) {
    set_way(graph.op(op), ways, way);
    const Nanoseconds ns = cost.op_ns(graph, op);
    if (way == 0 || ns < least) {
      best = way;
      least = ns;
    }
  }
  return best;
}

}  // namespace

Graph take_ways(Graph graph, const WantedWays& wanted) {
  for (size_t i = 0; i < graph.num_ops() && !wanted.empty(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const OpWays ways = ways_of(graph, op);
    if (ways.names.empty()) continue;
    const auto name = wanted.find(ways.attribute);
    if (name == wanted.end()) continue;
    const auto way = std::find(ways.names.begin(), ways.names.end(), name->second);
    if (way == ways.names.end()) continue;
    set_way(graph.op(op), ways, static_cast<size_t>(way - ways.names.begin()));
  }
  return graph;
}

Graph take_quickest_ways(Graph graph, const CostModel& cost, const WantedWays& but_not) {
  std::map<std::string, size_t> chosen;  // by signature without a way
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const OpWays ways = ways_of(graph, op);
    if (ways.names.empty() || graph.op(op).attrs.contains(ways.attribute) ||
        but_not.contains(ways.attribute)) {
      continue;
    }
    const auto [known, fresh] = chosen.emplace(op_signature(graph, op), 0);
    if (fresh) known->second = quickest(graph, op, ways, cost);
    set_way(graph.op(op), ways, known->second);
  }
  return graph;
}

}  // namespace moe
