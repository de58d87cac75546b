// Small plans with costs given by hand.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph/op_def.h"
#include "engine/plan.h"
#include "engine/replay/replay.h"
#include "tests/base/message_of.h"
#include "tests/model/gpt2.h"

namespace moe::test {

/// Every op costs what the function says.
class GivenCost : public CostModel {
 public:
  using Function = std::function<Nanoseconds(const Graph&, OpId)>;
  explicit GivenCost(Function cost) : cost_(std::move(cost)) {}
  Nanoseconds op_ns(const Graph& graph, OpId op) const override { return cost_(graph, op); }
  std::string describe() const override { return "given"; }

 private:
  Function cost_;
};

/// Four blocks, MoE in 1 and 3; 32 tokens and 4 experts, so 10 slots per expert.
inline PlanSpec small_spec(std::vector<Stage> stages = {}, int64_t num_ranks = 2) {
  PlanSpec spec;
  spec.num_ranks = num_ranks;
  change_model(spec, [&](Gpt2& m) {
    m.vocab = 64;
    m.layers = 4;
    m.hidden = 16;
    m.heads = 2;
    m.seq = 8;
    m.batch_per_device = 4;
    m.experts = 4;
  });
  spec.system.name = "test";
  spec.system.stages = std::move(stages);
  spec.cost = std::make_shared<GivenCost>([](const Graph&, OpId) { return Nanoseconds{10}; });
  return spec;
}

inline Stage stage(const std::string& name, Options options = {}) {
  Stage made;
  made.name = name;
  made.options = std::move(options);
  return made;
}

inline std::string kind(const Graph& graph, OpId op) {
  return graph.def(op).name;
}

/// The ops of a kind, in program order.
inline std::vector<OpId> ops_of(const Graph& graph, const std::string& wanted) {
  std::vector<OpId> found;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (kind(graph, op) == wanted) found.push_back(op);
  }
  return found;
}

inline Timeline simulate(const Plan& plan) {
  return replay(
      {.graph = plan.graph,
       .schedule = plan.schedule,
       .orders = plan.orders,
       .duration_ns = [&plan](OpId op, int32_t) { return plan.spec.cost->op_ns(plan.graph, op); }});
}

inline Nanoseconds makespan(const Plan& plan) {
  Nanoseconds end = 0;
  for (const Span& span : simulate(plan).spans) end = std::max(end, span.end);
  return end;
}

}  // namespace moe::test
