// Fake ops and random programs for tests of schedules: shapes come from attributes, nothing runs.
#pragma once

#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/schedule.h"
#include "tests/base/message_of.h"

namespace moe::fake {

/// One output for each number of attr "sizes" ("16,4"), of that many floats; "i32" makes indices.
inline std::vector<TensorSpec> infer(const Graph&, const Op& op) {
  std::vector<TensorSpec> specs;
  const std::string sizes = attr_string(op, "sizes", "16");
  const DType dtype = attr_int(op, "i32") != 0 ? DType::kI32 : DType::kF32;
  for (size_t at = 0; at < sizes.size();) {
    const size_t comma = std::min(sizes.find(',', at), sizes.size());
    specs.push_back({{std::stoll(sizes.substr(at, comma - at))}, dtype});
    at = comma + 1;
  }
  return specs;
}

/// work: compute. map: compute that may write in place of input 0. send: an all-to-all. reduce: an
/// all-reduce in place. update: overwrites its input 0 and makes nothing.
inline const OpTable& table() {
  static const Operand any_in{"x", Role::kAny, true, 16}, any_out{"y", Role::kAny, true, 16};
  static const OpDef work{
      .name = "work", .doc = "", .inputs = {any_in}, .outputs = {any_out}, .infer = infer};
  static const OpDef map{.name = "map",
                         .doc = "",
                         .inputs = {any_in},
                         .outputs = {any_out},
                         .infer = infer,
                         .may_alias = {{0, 0}}};
  static const OpDef send{
      .name = "send",
      .doc = "",
      .lane = LaneKind::kComm,
      .collective = Collective::kAllToAll,
      .inputs = {optional("x", Role::kAny), optional("counts", Role::kCounts), any_in},
      .outputs = {any_out},
      .infer = infer};
  static const OpDef reduce{.name = "reduce",
                            .doc = "",
                            .lane = LaneKind::kComm,
                            .collective = Collective::kAllReduce,
                            .inputs = {any_in},
                            .outputs = {any_out},
                            .infer = infer,
                            .alias_each = true};
  static const OpDef update{
      .name = "update",
      .doc = "",
      .inputs = {any_in},
      .infer = [](const Graph&, const Op&) { return std::vector<TensorSpec>{}; },
      .mutates = {0}};
  static const OpTable ops({&work, &map, &send, &reduce, &update});
  return ops;
}

inline OpId add(Graph& graph, const std::string& kind, const std::string& name,
                std::vector<TensorId> inputs = {}, const std::string& sizes = "16") {
  return graph.add_op(kind, name, std::move(inputs), {{"sizes", sizes}});
}

inline OpId id(size_t i) {
  return OpId(static_cast<int64_t>(i));
}

/// A random program: mostly recent inputs, now and then an old one, as activations are read again
/// in the backward; one in `comm_every` ops is a collective; parameters that the last ops update.
inline Graph random_graph(uint64_t seed, int64_t num_ops, int64_t comm_every = 4) {
  Rng rng(seed);
  Graph graph(table());
  std::vector<TensorId> made;
  const TensorId param =
      graph.add_tensor({.name = "param", .shape = {8}, .kind = TensorKind::kParam});
  for (int64_t i = 0; i < num_ops; ++i) {
    std::vector<TensorId> inputs;
    for (int64_t k = rng.below(4); k > 0 && !made.empty(); --k) {
      const int64_t n = static_cast<int64_t>(made.size());
      const int64_t back = rng.below(5) == 0 ? rng.below(n) : rng.below(std::min<int64_t>(n, 6));
      inputs.push_back(made[static_cast<size_t>(n - 1 - back)]);
    }
    if (rng.below(8) == 0) inputs.push_back(param);
    std::string kind = rng.below(2) == 0 && !inputs.empty() ? "map" : "work";
    if (!inputs.empty() && rng.below(comm_every) == 0) kind = rng.below(2) == 0 ? "send" : "reduce";
    std::string sizes = std::to_string(16 * (1 + rng.below(6)));
    if (rng.below(3) == 0) sizes += "," + std::to_string(16 * (1 + rng.below(6)));
    const OpId op = add(graph, kind, "op" + std::to_string(i), inputs, sizes);
    for (const TensorId t : graph.op(op).outputs) made.push_back(t);
  }
  add(graph, "update", "update", {param, made.back()});
  return graph;
}

/// Lanes compute, comm and comm_reduce, collectives on a random one of the two, and some order
/// edges that agree with a random topological order.
inline Schedule random_schedule(const Graph& graph, uint64_t seed, int64_t num_edges) {
  Rng rng(seed);
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  if (seed % 3 != 0) schedule.lanes[seed % 3].pick = Pick::kPriority;
  for (LaneId& lane : schedule.lane_of) {
    if (lane.value == 1 && rng.below(2) == 0) lane = LaneId(2);
  }
  const Dependencies deps = dependencies(graph);
  std::vector<OpId> order, ready;
  std::vector<size_t> waiting(graph.num_ops());
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting[i] = deps.preds[i].size();
    if (waiting[i] == 0) ready.push_back(id(i));
  }
  while (!ready.empty()) {
    const auto pick = static_cast<std::ptrdiff_t>(rng.below(static_cast<int64_t>(ready.size())));
    order.push_back(ready[static_cast<size_t>(pick)]);
    ready.erase(ready.begin() + pick);
    for (const OpId s : deps.succs[order.back().index()]) {
      if (--waiting[s.index()] == 0) ready.push_back(s);
    }
  }
  const auto n = static_cast<int64_t>(order.size());
  for (int64_t i = 0; i < num_edges; ++i) {
    const int64_t a = rng.below(n), b = rng.below(n);
    if (a == b) continue;
    schedule.before(order[static_cast<size_t>(std::min(a, b))],
                    order[static_cast<size_t>(std::max(a, b))], "random", "a test");
  }
  return schedule;
}

/// Happens-before by definition: succession on lanes in order, data, mutation and order edges,
/// closed transitively. after[a][b]: b happens after a.
inline std::vector<std::vector<bool>> brute_force(const Graph& graph, const Schedule& schedule,
                                                  const LaneOrders& orders) {
  const size_t n = graph.num_ops();
  std::vector<std::vector<bool>> after(n, std::vector<bool>(n));
  const Dependencies deps = dependencies(graph);
  for (size_t i = 0; i < n; ++i) {
    for (const OpId s : deps.succs[i]) after[i][s.index()] = true;
  }
  for (const OrderEdge& e : schedule.order_edges) after[e.from.index()][e.to.index()] = true;
  for (size_t l = 0; l < orders.lanes.size(); ++l) {
    if (schedule.lanes[l].pick != Pick::kOrder) continue;
    const auto& lane = orders.lanes[l];
    for (size_t i = 1; i < lane.size(); ++i) after[lane[i - 1].index()][lane[i].index()] = true;
  }
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      if (!after[i][k]) continue;
      for (size_t j = 0; j < n; ++j) {
        if (after[k][j]) after[i][j] = true;
      }
    }
  }
  return after;
}

using test::message_of;

}  // namespace moe::fake
