// A gate that chooses by the scores of a workload: executed on CPU ranks and simulated.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "engine/graph/op_def.h"
#include "engine/routing/executed_routing.h"
#include "engine/routing/gate_sample.h"
#include "engine/routing/primitives.h"
#include "engine/routing/workload.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// Takes the best expert of every token, and the second best of one token in a hundred.
Gate rare_second() {
  Gate gate = builtin_gate("random");
  gate.name = "rare_second";
  gate.chooser = Chooser::kToken;
  gate.fixed_k = 2;
  gate.weight = kernels::WeightRule::kProb;
  gate.route = [](const GateInput& in, RoutingBuilder& out) {
    const auto size = static_cast<size_t>(in.tokens * in.experts);
    const auto best = topk_rows({std::span(in.scores, size), in.experts}, 2);
    for (int64_t t = 0; t < in.tokens; ++t) {
      out.take(t, best[static_cast<size_t>(2 * t)]);
      if ((in.first_token + t) % 100 == 0) out.take(t, best[static_cast<size_t>(2 * t + 1)]);
    }
  };
  return gate;
}

PlanSpec spec_with(const Gate& gate) {
  Gpt2 model = small_model("top2", 16);
  model.k = gate.fixed_k;
  PlanSpec spec = spec_of(model, 2);
  set_model(spec, model, gate_spec(model, gate));
  spec.system.stages = {pass("irregular_a2a"), pass("used_rows")};
  return spec;
}

using BytesByOp = std::map<std::pair<size_t, int32_t>, Bytes>;

/// The bytes that all-to-alls of rows put on the wire.
BytesByOp row_bytes(const Plan& plan, const Timeline& timeline) {
  BytesByOp bytes;
  for (const Span& span : timeline.spans) {
    if (!carries(plan.graph, span.op, Payload::kRows)) continue;
    const std::pair key(span.op.index(), timeline.num_ranks == 1 ? 0 : span.rank);
    bytes[key] += span.bytes;
  }
  return bytes;
}

Bytes total(const BytesByOp& bytes) {
  Bytes sum = 0;
  for (const auto& [key, of_op] : bytes) sum += of_op;
  return sum;
}

TEST_CASE("by the scores of a workload a gate sends the same bytes simulated and executed") {
  const auto law =
      std::make_shared<const RoutingModel>(workload("zipf", {{"s", 0.8}, {"drift", 0.2}}, 5));
  for (const Gate& gate : {rare_second(), builtin_gate("top2_c1"), builtin_gate("expert_choice")}) {
    INFO(gate.name);
    PlanSpec spec = spec_with(gate);
    spec.routing = std::make_shared<const RoutingModel>(
        gated_routing(gate_use(gate, spec.gate, *spec.model, 2), law));
    const auto plan = make_plan(spec);
    RunOptions options = options_of(*plan, 3);
    if (gate.name == "rare_second") options.policies.gate = [&](int64_t) { return gate; };
    const RunResult executed = run_cpu(*plan, options);
    const RunResult simulated = moe::run(*plan, "simulate", options);
    REQUIRE(simulated.timelines.size() == 3);
    for (size_t step = 0; step < 3; ++step) {
      REQUIRE(executed.moe[step].size() == 1);
      const RoutingQuery query = {.step = static_cast<int64_t>(step),
                                  .ranks = 2,
                                  .tokens = spec.model->tokens_per_rank(),
                                  .experts = spec.model->experts,
                                  .k = spec.gate.k};
      const ExpertCounts kept = spec.routing->kept(query);
      const std::vector<int64_t>& counts = executed.moe[step][0].counts;
      CHECK(std::equal(kept.rows.begin(), kept.rows.end(), counts.begin(), counts.end()));
      const BytesByOp sent = row_bytes(*plan, executed.timelines[step]);
      CHECK(total(sent) > 0);
      if (simulated.timelines[step].num_ranks == 2) {
        CHECK(row_bytes(*plan, simulated.timelines[step]) == sent);
      }
    }
  }
}

TEST_CASE("with the counts of executed steps a simulation sends their bytes, op by op") {
  for (const Gate& gate : {rare_second(), builtin_gate("switch"), builtin_gate("expert_choice")}) {
    INFO(gate.name);
    const PlanSpec spec = spec_with(gate);
    const auto plan = make_plan(spec);
    RunOptions options = options_of(*plan, 3);
    if (gate.name == "rare_second") options.policies.gate = [&](int64_t) { return gate; };
    const RunResult executed = run_cpu(*plan, options);
    std::vector<std::vector<std::vector<int64_t>>> used;
    for (const auto& layers : executed.moe) {
      used.emplace_back();
      for (const MoeStats& layer : layers) used.back().push_back(layer.counts);
    }
    if (gate.chooser != Chooser::kExpert) CHECK(used[0] != used[2]);  // those fill all slots
    Plan routed = *plan;
    routed.spec.routing = std::make_shared<const RoutingModel>(executed_routing(used));
    const RunResult simulated = moe::run(routed, "simulate", options);
    REQUIRE(simulated.timelines.size() == 3);
    for (size_t step = 0; step < 3; ++step) {
      const Timeline& made = simulated.timelines[step];
      const BytesByOp planned = row_bytes(*plan, made);
      for (const auto& [key, bytes] : row_bytes(*plan, executed.timelines[step])) {
        // Where both ranks do the same, one of them is simulated.
        CHECK(planned.at({key.first, made.num_ranks == 1 ? 0 : key.second}) == bytes);
      }
    }
    options.steps = 4;
    CHECK_THROWS_WITH(moe::run(routed, "simulate", options),
                      Catch::Matchers::Contains("3 executed steps has no counts of step 3"));
  }
}

TEST_CASE("without a workload a rarely taken second choice is simulated as it is executed") {
  // The scores of a model at its initial values are nearly even.
  const auto simulated_bytes = [](const Gate& gate, double slot_occupancy) {
    PlanSpec spec = spec_with(gate);
    spec.work.slot_occupancy = slot_occupancy;
    spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
    const auto plan = make_plan(spec);
    return total(row_bytes(*plan, moe::run(*plan, "simulate", {}).timelines[0]));
  };
  const Gate rare = rare_second();
  const PlanSpec spec = spec_with(rare);
  const MeanRouting mean = even_routing(gate_use(rare, spec.gate, *spec.model, 2), 1);
  const auto plan = make_plan(spec);
  RunOptions options = options_of(*plan, 1);
  options.policies.gate = [&](int64_t) { return rare; };
  const RunResult executed = run_cpu(*plan, options);
  const auto by_gate = static_cast<double>(simulated_bytes(rare, mean.slot_occupancy));
  const double executed_bytes =
      static_cast<double>(total(row_bytes(*plan, executed.timelines[0]))) / 2;
  CHECK(by_gate == Approx(executed_bytes).epsilon(0.1));
  const auto as_top2 = static_cast<double>(simulated_bytes(rare, 1 / spec.model->capacity_factor));
  CHECK(as_top2 > 1.9 * by_gate);
  CHECK(as_top2 > 1.8 * executed_bytes);
}

}  // namespace
}  // namespace moe::test
