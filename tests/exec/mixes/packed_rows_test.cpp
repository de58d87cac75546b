// Models without a capacity, in systems that use only rows in use: a device has room for the rows
// of `rows_bound` devices, and a step that needs more fails. That packed rows change no result is
// checked by the mixes beside this file.
#include <catch2/catch.hpp>
#include <set>

#include "engine/graph/op_def.h"
#include "engine/profile/profiler.h"
#include "engine/sim/simulator.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

PlanSpec dropless(std::vector<Stage> stages, double rows_bound = 4, int64_t experts = 8,
                  int64_t layers = 2) {
  Gpt2 model = small_model("switch", 3);
  model.layers = layers;
  model.experts = experts;
  model.capacity_factor = 0;
  model.rows_bound = rows_bound;
  PlanSpec spec = spec_of(model, 4, Precision::kF64);
  spec.cluster.nodes = spec.cluster.devices_per_node = 2;
  spec.system.stages = std::move(stages);
  return spec;
}

Gate all_to_first_expert() {
  Gate gate = builtin_gate("switch");
  gate.route = [](const GateInput& input, RoutingBuilder& builder) {
    for (int64_t t = 0; t < input.tokens; ++t) builder.take(t, 0);
  };
  return gate;
}

RunResult run_packed(const Plan& plan, Gate (*gate)() = all_to_first_expert) {
  RunOptions options = options_of(plan, 1);
  options.precision = Precision::kF64;
  options.test.poison = true;
  options.policies.gate = [gate](int64_t) { return gate(); };
  return run_cpu(plan, options);
}

const std::vector<Stage> kUsedRows = {pass("irregular_a2a"), pass("used_rows")};

/// Returns the bytes of the plan's tensors in blocks of slots.
Bytes bytes_of_rows(const Plan& plan) {
  Bytes bytes = 0;
  for (size_t t = 0; t < plan.graph.tensors().size(); ++t) {
    const Tensor& tensor = plan.graph.tensors()[t];
    if (tensor.stored_rows > 0) bytes += plan.memory.buffers[t].bytes;
  }
  return bytes;
}

/// Gates and exchanges of counts take far less time in parts, exchanges of rows and what follows
/// them far more.
class CheapCountsInParts : public CostModel {
 public:
  Nanoseconds op_ns(const Graph& graph, OpId id) const override {
    const Op& op = graph.op(id);
    const bool part = op.part >= 0;
    const bool counts = carries(graph, id, Payload::kCounts) || is(graph, id, MoeOp::kGate);
    if (counts) return part ? 100 : 100'000;
    const bool behind = carries(graph, id, Payload::kRows) || op.segment > Segment::kDispatch;
    return part && behind ? 100'000 : 100;
  }
  std::string describe() const override { return "given"; }
};

TEST_CASE("a range that ends with the exchange of counts leaves the rows behind it whole") {
  const auto by_score = [] { return builtin_gate("switch"); };
  PlanSpec spec = dropless(kUsedRows);
  const RunResult whole = run_packed(*make_plan(spec), by_score);
  spec.cost = std::make_shared<CheapCountsInParts>();
  spec.system.stages.push_back(pass("partition", {{"parts", 2.0}, {"groups", 0.0}}));
  const auto plan = make_plan(spec);
  CHECK(plan->graph.find_op("b1.moe.gate.p1").valid());
  CHECK(plan->graph.find_op("b1.moe.gate.exchange_counts.p1").valid());
  CHECK(plan->graph.find_op("b1.moe.a2a_1").valid());
  const RunResult cut = run_packed(*plan, by_score);
  CHECK(cut.losses == whole.losses);
  CHECK(same_run(whole, cut, {.losses = 1e-12, .norms = 1e-12}));  // rows in another order
}

/// Gates, exchanges of loads and combines take far less time in parts, what is between them far
/// more.
class CheapGatesAndCombinesInParts : public CostModel {
 public:
  Nanoseconds op_ns(const Graph& graph, OpId id) const override {
    const bool part = graph.op(id).part >= 0;
    if (is(graph, id, MoeOp::kGate) || carries(graph, id, Payload::kLoads) ||
        is(graph, id, MoeOp::kCombine)) {
      return part ? 100 : 100'000;
    }
    const bool between = is(graph, id, MoeOp::kDispatch) || carries(graph, id, Payload::kRows) ||
                         graph.op(id).segment == Segment::kExpert;
    return part && between ? 100'000 : 100;
  }
  std::string describe() const override { return "given"; }
};

TEST_CASE("a range ends with the exchange of loads, another begins at the combine") {
  const auto by_score = [] { return builtin_gate("switch"); };
  PlanSpec spec = dropless({pass("swap")}, 4, 8, 4);
  const RunResult whole = run_packed(*make_plan(spec), by_score);
  spec.cost = std::make_shared<CheapGatesAndCombinesInParts>();
  spec.system.stages = {pass("partition", {{"parts", 2.0}, {"groups", 0.0}}), pass("swap")};
  const auto plan = make_plan(spec);
  CHECK(plan->graph.find_op("b1.moe.gate.p1").valid());
  CHECK(plan->graph.find_op("b1.moe.dispatch").valid());
  CHECK(plan->graph.find_op("b1.moe.combine.p1").valid());
  const RunResult cut = run_packed(*plan, by_score);
  CHECK(cut.losses == whole.losses);
  CHECK(same_run(whole, cut, {.losses = 1e-12, .norms = 1e-12}));  // rows in another order
}

TEST_CASE("a step whose rows have no room fails and names the layer and the device") {
  for (const bool two_steps : {false, true}) {
    std::vector<Stage> stages = kUsedRows;
    if (two_steps) stages.push_back(pass("hierarchical_a2a"));
    CHECK_NOTHROW(run_packed(*make_plan(dropless(stages, 4))));
    const PlanSpec tight = dropless(stages, 2);
    CHECK_THROWS_WITH(run_packed(*make_plan(tight)), Catch::Contains("block 1") &&
                                                         Catch::Contains("device 0") &&
                                                         Catch::Contains("model.rows_bound"));
  }
}

TEST_CASE("the simulator says which rows have no room, and times the step as if they had") {
  PlanSpec spec = dropless(kUsedRows, 2);
  spec.routing = std::make_shared<const RoutingModel>(
      RoutingModel{.name = "one expert", .route = nullptr, .loads = [](const RoutingQuery& query) {
                     ExpertCounts counts(query.ranks, query.experts);
                     for (int64_t r = 0; r < query.ranks; ++r) counts.at(r, 0) = query.tokens;
                     return counts;
                   }});
  RunOptions options;
  options.steps = 1;
  const std::string reason = make_simulator()->run(*make_plan(spec), options).stop_reason;
  CHECK_THAT(reason, Catch::Contains("step 1") && Catch::Contains("block 1") &&
                         Catch::Contains("device 0"));
  change_model(spec, [&](Gpt2& m) { m.rows_bound = 4; });
  CHECK(make_simulator()->run(*make_plan(spec), options).stop_reason.empty());
}

TEST_CASE("packed rows take memory for the tokens, not for tokens times experts") {
  const auto few = make_plan(dropless(kUsedRows, 4, 8)),
             many = make_plan(dropless(kUsedRows, 4, 64));
  CHECK(bytes_of_rows(*few) > 0);
  CHECK(bytes_of_rows(*many) == bytes_of_rows(*few));
}

TEST_CASE("every kind of op on packed rows can be timed, with as many rows as there is room for") {
  const ProfileOptions quick = {.ranks_beside = 4, .min_time_s = 0, .min_samples = 1};
  const std::vector<std::vector<Stage>> systems = {
      {pass("partition", {{"parts", 2.0}, {"before", 2.0}, {"after", 0.0}})},
      {pass("capacity_pipeline", {{"degree", 2.0}}), pass("hierarchical_a2a")},
      {pass("eplb")}};
  for (const double occupancy : {0.0, 0.13, 1.0}) {
    for (std::vector<Stage> stages : systems) {
      stages.insert(stages.begin(), {pass("irregular_a2a"), pass("used_rows")});
      PlanSpec spec = dropless(stages);
      spec.element_bytes = 4;
      const auto plan = make_plan(spec);
      std::set<std::pair<std::string, std::string>> kinds;
      for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
        const OpId op(static_cast<int64_t>(i));
        const Op& one = plan->graph.op(op);
        if (is_view(plan->graph, one) || one.layer != 1) continue;
        const char* const what = one.rows.share ? "part" : "whole";
        if (!kinds.emplace(plan->graph.def(op).name, what).second) continue;
        INFO(one.name);
        ProfileOptions options = quick;
        options.work.slot_occupancy = occupancy;
        CHECK(!profile_op(plan->graph, op, options).ns.empty());
      }
    }
  }
}

TEST_CASE("rows stay padded, and the log says why, where an op uses all slots") {
  const auto plan = make_plan(dropless({pass("irregular_a2a")}));
  CHECK(bytes_of_rows(*plan) == 0);
  const auto& log = plan->schedule.log;
  CHECK(std::any_of(log.begin(), log.end(), [](const Decision& d) {
    return d.stage == "rows" && d.why.find("fc1") != std::string::npos;
  }));
}

TEST_CASE("with a capacity, rows that no op reads are not cleared") {
  PlanSpec spec = dropless(kUsedRows);
  change_model(spec, [&](Gpt2& m) { m.capacity_factor = 1.5; });
  const auto plan = make_plan(spec);
  CHECK(bytes_of_rows(*plan) == 0);
  for (const Op& op : plan->graph.ops()) {
    const bool rows = op.rows.irregular || attr_string(op, "rows") == "used";
    if (rows) CHECK(op.rows.loose);
  }
}

}  // namespace
}  // namespace moe::test
