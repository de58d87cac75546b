// Plans with a routing model, executed: tokens go where it says, whatever the system.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/profile/rehearsal.h"
#include "engine/routing/workload.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

PlanSpec spec_with(const RoutingModel& routing, Gpt2 model, int64_t ranks,
                   Precision precision = Precision::kF32) {
  PlanSpec spec = spec_of(model, ranks, precision);
  spec.routing = std::make_shared<const RoutingModel>(routing);
  set_model(spec, model, gate_spec(model, routed_gate(spec.routing, model, {}, ranks)));
  return spec;
}

RoutingQuery query_of(const Plan& plan, int64_t step, int64_t block) {
  const Model& m = *plan.spec.model;
  return {.step = step,
          .layer = m.moe_layer(block),
          .ranks = plan.spec.num_ranks,
          .tokens = m.tokens_per_rank(),
          .experts = m.experts,
          .k = plan.spec.gate.k};
}

Gpt2 model_of(int64_t k, double capacity_factor) {
  Gpt2 model = small_model("switch", 3);
  model.layers = 4;
  model.k = k;
  model.capacity_factor = capacity_factor;
  return model;
}

// Places used are the routing model's loads, as far as there are places.
void check_counts(const Plan& plan, const RunResult& result) {
  for (size_t step = 0; step < result.moe.size(); ++step) {
    REQUIRE(result.moe[step].size() == 2);
    for (const MoeStats& stats : result.moe[step]) {
      const ExpertCounts loads =
          plan.spec.routing->loads(query_of(plan, static_cast<int64_t>(step), stats.layer));
      int64_t dropped = 0;
      for (size_t i = 0; i < loads.rows.size(); ++i) {
        CHECK(stats.counts[i] == std::min(loads.rows[i], stats.capacity));
        dropped += loads.rows[i] - stats.counts[i];
      }
      CHECK(stats.dropped == dropped);
    }
  }
}

}  // namespace

TEST_CASE("ranks send their tokens where the routing model says, each layer and step") {
  for (const WorkloadDef& def : workloads()) {
    for (const int64_t k : {1, 2}) {
      for (const double factor : {0.0, 1.0}) {
        CAPTURE(def.name, k, factor);
        const auto plan = plan_of(spec_with(workload(def.name, {}, 3), model_of(k, factor), 2));
        check_counts(*plan, run_cpu(*plan, options_of(*plan, 2)));
      }
    }
  }
}

TEST_CASE("a rank without tokens takes part in all-to-alls that carry only rows in use") {
  const PlanSpec spec = spec_with(workload("zero_token_rank", {}, 3), model_of(1, 0), 4);
  const auto plan = plan_of(spec, ragged_step_graph(spec));
  check_counts(*plan, run_cpu(*plan, options_of(*plan, 2)));
}

TEST_CASE("gradients reach the gate of a routing model with one choice") {
  const auto plan = plan_of(spec_with(workload("balanced", {}, 3), model_of(1, 0), 2));
  RunOptions options = options_of(*plan, 1);
  options.train.keep_grad_norms = true;
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.grad_l2.at("b1.gate.w") > 0);
}

TEST_CASE("the graph's gates carry the routing model's name, and a rehearsal is balanced") {
  const PlanSpec spec = spec_with(workload("hot_expert", {}, 3), model_of(1, 1.25), 2);
  CHECK(spec.gate.name == "hot_expert(share=0.5, seed=3)");
  CHECK(rehearsal_spec(spec, false).routing->name == workload("balanced", {}, 1).name);
  CHECK(rehearsal_spec(spec_of(model_of(1, 1.25), 2, Precision::kF32), false).routing == nullptr);
}

TEST_CASE("a recorded run replays: the same routing, losses and parameters") {
  for (const char* gate : {"top2", "expert_choice"}) {
    CAPTURE(gate);
    Gpt2 model = model_of(2, 1.0);
    model.gate = gate;
    const auto plan = plan_of(spec_of(model, 2));
    RunOptions options = options_of(*plan, 3);
    options.record = std::make_shared<Trace>();
    const RunResult recorded = run_cpu(*plan, options);
    const Trace& trace = *options.record;
    CHECK(read_trace(trace_bytes(trace), "x") == trace);
    CHECK(trace.steps == 3);
    CHECK(trace.blocks == std::vector<int32_t>{1, 3});
    CHECK(trace.k == plan->spec.gate.columns);
    if (gate == std::string("expert_choice")) continue;  // no routing model of k choices per token
    const RoutingModel routing = routing_of(options.record, "trace", false);
    PlanSpec spec = spec_with(routing, model, 2);
    GateSpec replaying = spec.gate;
    replaying.weight = plan->spec.gate.weight;
    set_model(spec, model, replaying);
    const auto replayed = plan_of(spec);
    const RunResult again = run_cpu(*replayed, options_of(*replayed, 3));
    CHECK(same_run(recorded, again));
  }
}

TEST_CASE("a gate in parts is recorded as the whole, and evaluation is not") {
  PlanSpec spec = spec_with(workload("zipf", {}, 3), model_of(1, 1.0), 2);
  spec.system.stages = {pass("irregular_a2a"), pass("used_rows"),
                        pass("partition", {{"parts", 3.0}, {"before", 2.0}, {"after", 2.0}})};
  const auto plan = make_plan(spec);
  RunOptions options = options_of(*plan, 2);
  options.record = std::make_shared<Trace>();
  options.train.eval_batches = 1;
  options.train.eval_data = options.data;
  run_cpu(*plan, options);
  REQUIRE(options.record->steps == 2);
  const RoutingModel routing = routing_of(options.record, "trace", false);
  for (int64_t step = 0; step < 2; ++step) {
    const RoutingQuery q = query_of(*plan, step, 3);
    CHECK(routing.loads(q) == spec.routing->loads(q));
  }
}

TEST_CASE("an error of the routing model names rank, step and op") {
  RoutingModel routing = workload("zipf", {}, 3);
  routing.route = [](const RoutingQuery& q, int64_t, std::span<int32_t>) {
    throw UserError("the trace has 1 step, asked for step " + std::to_string(q.step + 1));
  };
  const auto plan = plan_of(spec_with(routing, model_of(1, 0), 2));
  CHECK_THROWS_WITH(run_cpu(*plan, options_of(*plan, 2)),
                    Contains("step 0, op b1.moe.gate: the trace has 1 step, asked for step 1"));
}

}  // namespace moe::test
