// Programs with views and joined rows, fake ops otherwise, with their plans and a brute-force
// happens-before.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/graph/joined.h"
#include "engine/ops/defs.h"
#include "engine/schedule/legality.h"
#include "engine/schedule/lifetime.h"
#include "tests/schedule/fixture.h"

namespace moe::fake::joined {

/// [4, rows of attr "rows"], floats.
inline std::vector<TensorSpec> infer_rows(const Graph&, const Op& op) {
  return {{{4, attr_int(op, "rows", 16)}, DType::kF32}};
}

/// The fake ops, the views, and ops that make rows on a compute and on a comm lane.
inline const OpTable& table() {
  static const OpDef rows{.name = "rows",
                          .doc = "",
                          .inputs = {{"x", Role::kAny, true, 16}},
                          .outputs = {{"y"}},
                          .infer = infer_rows};
  static const OpDef send_rows{.name = "send_rows",
                               .doc = "",
                               .lane = LaneKind::kComm,
                               .collective = Collective::kAllToAll,
                               .inputs = {{"x", Role::kAny, true, 16}},
                               .outputs = {{"y"}},
                               .infer = infer_rows};
  static const OpTable ops = [] {
    std::vector<const OpDef*> defs(fake::table().defs().begin(), fake::table().defs().end());
    for (const OpDef* def : {&ops::kSplit, &ops::kConcat, &ops::kJoinRows, &rows, &send_rows}) {
      defs.push_back(def);
    }
    return OpTable(defs);
  }();
  return ops;
}

inline OpId glue(Graph& graph, const std::string& name, std::vector<TensorId> parts) {
  return graph.add_op("concat", name, std::move(parts),
                      {{"axis", int64_t{0}}, {"view", int64_t{1}}});
}

inline OpId cut(Graph& graph, const std::string& name, TensorId whole, int64_t first) {
  const int64_t n = graph.tensor(whole).shape[0];
  return graph.add_op("split", name, {whole},
                      {{"axis", int64_t{0}},
                       {"sizes", fmt::format("{},{}", first, n - first)},
                       {"view", int64_t{1}}});
}

/// Random ops, among them views and joins of rows whose parts are made on all lanes. Every op that
/// writes comes after the first, "anchor".
class RandomProgram {
 public:
  RandomProgram(uint64_t seed, int64_t num_ops) : rng_(seed), graph_(table()) {
    made_ = {graph_.out(add(graph_, "work", "anchor"))};
    made_.push_back(graph_.add_tensor({.name = "x", .shape = {24}, .kind = TensorKind::kInput}));
    for (number_ = 0; number_ < num_ops; ++number_) step();
  }
  Graph take() { return std::move(graph_); }

 private:
  std::string name(const char* what) { return fmt::format("{}{}.{}", what, number_, unique_++); }
  TensorId pick() {
    const auto n = static_cast<int64_t>(made_.size());
    const int64_t back = rng_.below(5) == 0 ? rng_.below(n) : rng_.below(std::min<int64_t>(n, 6));
    return made_[static_cast<size_t>(n - 1 - back)];
  }
  std::vector<TensorId> inputs() {
    std::vector<TensorId> list{made_[0]};
    for (int64_t k = rng_.below(3); k > 0; --k) list.push_back(pick());
    return list;
  }
  TensorId fresh() {
    const char* kinds[] = {"map", "work", "send", "reduce"};
    const char* kind = kinds[rng_.below(4)];
    const OpId op = add(graph_, kind, name(kind), inputs(), std::to_string(1 + rng_.below(40)));
    return graph_.out(op);
  }
  TensorId fresh_rows(int64_t rows) {
    const char* kind = rng_.below(2) == 0 ? "rows" : "send_rows";
    return graph_.out(graph_.add_op(kind, name(kind), inputs(), {{"rows", rows}}));
  }
  TensorId row_ends() {
    return graph_.out(
        graph_.add_op("work", name("row_ends"), {made_[0]}, {{"sizes", "4"}, {"i32", int64_t{1}}}));
  }

  void step() {
    switch (rng_.below(6)) {
      case 0: {
        std::vector<TensorId> parts;
        for (int64_t p = 2 + rng_.below(2); p > 0; --p) parts.push_back(fresh());
        made_.push_back(graph_.out(glue(graph_, name("glue"), parts)));
        made_.push_back(parts[0]);
        return;
      }
      case 1: {
        const TensorId whole = pick();
        const int64_t n = graph_.tensor(whole).shape[0];
        if (n < 2) return;
        const OpId op = cut(graph_, name("cut"), whole, 1 + rng_.below(n - 1));
        made_.insert(made_.end(), graph_.op(op).outputs.begin(), graph_.op(op).outputs.end());
        return;
      }
      case 2: {
        const int64_t k = 1 + rng_.below(3), rows = 1 + rng_.below(9);
        std::vector<TensorId> list;
        for (int64_t p = 0; p < k; ++p) list.push_back(row_ends());
        for (int64_t p = 0; p < k; ++p) list.push_back(fresh_rows(rows));
        made_.push_back(list.back());
        made_.push_back(graph_.out(graph_.add_op("join_rows", name("join"), list, {{"parts", k}})));
        return;
      }
      default:
        made_.push_back(fresh());
    }
  }

  Rng rng_;
  Graph graph_;
  int64_t number_ = 0, unique_ = 0;
  std::vector<TensorId> made_;
};

/// A program, its schedule and plan, and who comes before whom by brute force.
struct Case {
  Graph graph;
  Schedule schedule;
  LaneOrders orders;
  MemoryPlan memory;
  std::vector<std::vector<bool>> after;
  JoinedTensors joined;
  TensorUses uses;

  Case(Graph g, Schedule s)
      : graph(std::move(g)),
        schedule(std::move(s)),
        orders(lane_orders(graph, schedule)),
        memory(plan_memory(graph, schedule, orders)),
        after(brute_force(graph, schedule, orders)),
        joined(graph),
        uses(graph) {}

  std::string refusal() const {
    return message_of<RunError>([this] { check_legal(graph, schedule, {&orders, 1}, memory); });
  }
  Buffer& at(TensorId t) { return memory.buffers[t.index()]; }
  const Buffer& at(TensorId t) const { return memory.buffers[t.index()]; }
  bool overlap(TensorId a, TensorId b) const {
    return at(a).persistent == at(b).persistent && at(a).offset < at(b).offset + at(b).bytes &&
           at(b).offset < at(a).offset + at(a).bytes;
  }
  std::vector<TensorId> group(TensorId t) const {
    const int32_t g = joined.group_of[t.index()];
    return g < 0 ? std::vector<TensorId>{t} : joined.groups[static_cast<size_t>(g)].members;
  }
  bool writes(TensorId t) const {
    const OpId maker = uses.producer[t.index()];
    return maker.valid() && !is_view(graph, graph.op(maker));
  }
  /// All that is joined with a is over before `op` begins.
  bool all_over(TensorId a, OpId op) const {
    const auto group_a = group(a);
    return std::all_of(group_a.begin(), group_a.end(), [&](TensorId t) {
      const auto& readers = uses.readers[t.index()];
      return after[uses.producer[t.index()].index()][op.index()] &&
             std::all_of(readers.begin(), readers.end(),
                         [&](OpId r) { return after[r.index()][op.index()]; });
    });
  }
  /// All that is joined with a is over before anything that is joined with b is written.
  bool over_before(TensorId a, TensorId b) const {
    const auto group_b = group(b);
    return std::all_of(group_b.begin(), group_b.end(), [&](TensorId t) {
      return !writes(t) || all_over(a, uses.producer[t.index()]);
    });
  }
  bool in_place(TensorId a, TensorId b) const {
    return at(b).alias_of == a && group(a).size() == 1 && group(b).size() == 1;
  }
};

inline Case random_case(uint64_t seed) {
  Graph graph = RandomProgram(seed, 50).take();
  Schedule schedule = random_schedule(graph, seed, 6);
  return {std::move(graph), std::move(schedule)};
}

inline std::vector<TensorId> all_tensors(const Graph& graph) {
  std::vector<TensorId> all;
  for (size_t t = 0; t < graph.tensors().size(); ++t) all.emplace_back(static_cast<int64_t>(t));
  return all;
}

}  // namespace moe::fake::joined
