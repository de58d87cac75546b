#include "engine/analysis/step_summary.h"

#include <catch2/catch.hpp>

#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

std::vector<Metrics> steps_of(const std::vector<Nanoseconds>& makespans) {
  std::vector<Metrics> steps;
  for (const Nanoseconds ns : makespans) steps.emplace_back().makespan_ns = ns;
  return steps;
}

TEST_CASE("the median step is the shorter of the middle two, and the earlier of equals") {
  CHECK(median_step(steps_of({7})) == 0);
  CHECK(median_step(steps_of({9, 5, 7})) == 2);
  CHECK(median_step(steps_of({9, 5, 7, 1})) == 1);
  CHECK(median_step(steps_of({8, 3})) == 1);
  CHECK(median_step(steps_of({4, 4, 4, 4})) == 1);
}

TEST_CASE(
    "steps that differ are summed up by their mean, without the first, or by the median step") {
  std::vector<Metrics> steps = steps_of({17, 17, 29, 18});
  steps[2].all_to_all.wait_ns = steps[2].backward.window_ns = 40;
  const auto mean = [&](const char* statistic) {
    return mean_metrics(steps, counted_steps(steps, statistic));
  };
  CHECK(mean("mean").makespan_ns == 20);
  CHECK(mean("mean").all_to_all.wait_ns == 10);
  CHECK(mean("mean").backward.window_ns == 10);
  CHECK(mean("mean_after_first").makespan_ns == 21);
  CHECK(mean("median").makespan_ns == 17);
  CHECK_THROWS_AS(counted_steps(steps, "mode"), UserError);
  steps = steps_of({7});
  CHECK(mean("mean_after_first").makespan_ns == 7);
}

TEST_CASE("the forward ends with the last forward op of any rank") {
  const auto plan = make_plan(small_spec());
  const OpId forward = ops_of(plan->graph, "cross_entropy").at(0);
  const OpId update = ops_of(plan->graph, "sgd").at(0);
  const OpId first = ops_of(plan->graph, "embedding").at(0);
  Timeline timeline;
  timeline.spans = {{first, 0, LaneId(0), 0, 0, 10},
                    {forward, 0, LaneId(0), 0, 10, 30},
                    {forward, 1, LaneId(0), 0, 12, 34},
                    {update, 0, LaneId(0), 0, 40, 50}};
  CHECK(forward_end_ns(plan->graph, timeline) == 34);
  timeline.spans = {{update, 0, LaneId(0), 0, 40, 50}};
  CHECK(forward_end_ns(plan->graph, timeline) == 0);
}

TEST_CASE("ops alone are summed by collective, and by segment where they compute") {
  const auto plan = make_plan(small_spec());  // 10 ns per op
  const auto sums = ops_alone(plan->graph, *plan->spec.cost);
  const auto count = [&](const std::string& wanted) { return ops_of(plan->graph, wanted).size(); };
  CHECK(sums.at("all_to_all").ms() == Approx(1e-5 * static_cast<double>(count("all_to_all"))));
  CHECK(sums.at("all_reduce").ms() == Approx(1e-5 * static_cast<double>(count("all_reduce"))));
  double all = 0;
  for (const auto& [key, sum] : sums) all += sum.ms();
  CHECK(all == Approx(1e-5 * static_cast<double>(plan->graph.num_ops())));
  CHECK(sums.count("linear") == 0);
}

TEST_CASE("micro-ops are a layer's part each: its all-to-all to the experts, and its experts") {
  const auto times = [](std::vector<Stage> stages) {
    PlanSpec spec = small_spec(std::move(stages));
    spec.cost = std::make_shared<GivenCost>([](const Graph& graph, OpId op) {
      const bool sends = graph.def(op).collective == Collective::kAllToAll;
      return Nanoseconds{sends ? 3'000'000 : 1'000'000};
    });
    const auto plan = make_plan(spec);
    return micro_op_times(plan->graph, *plan->spec.cost);
  };
  const MicroOpTimes whole = times({});
  CHECK(whole.num == 2);  // blocks 1 and 3 are MoE layers
  CHECK(whole.a2a_ms == 3);
  CHECK(whole.ffn_ms == 3);  // fc1, GELU, fc2
  const MicroOpTimes cut = times({stage("capacity_pipeline", {{"degree", 2.0}})});
  CHECK(cut.num == 4);
  CHECK(cut.a2a_ms == 3);
}

}  // namespace
}  // namespace moe::test
