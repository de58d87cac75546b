#include "engine/plan.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::small_spec;
using test::stage;

/// Systems of all kinds, by name.
std::vector<SystemSpec> named_systems() {
  const auto cut = [](double degree) { return stage("capacity_pipeline", {{"degree", degree}}); };
  const GradientSync own_lane = {.lane = ReduceLane::kOwn};
  std::vector<SystemSpec> made = {
      {"plain", {}, {}},
      {"raf", {stage("serial")}, {}},
      {"deepspeed", {stage("blocking_a2a")}, own_lane},
      {"tutel", {cut(4)}, own_lane},
      {"lancet", {stage("irregular_a2a"), stage("used_rows"), stage("dw_schedule")}, {}},
      {"mix", {cut(3), stage("dw_schedule")}, own_lane},
      {"buckets", {stage("dw_schedule")}, own_lane},
      {"late", {stage("dw_schedule")}, {}}};
  made[6].sync.bucket_bytes = 4096;
  made[7].sync.place = ReducePlace::kAfter;
  return made;
}

TEST_CASE("every system gives a legal plan on 1, 2 and 4 ranks, the same one each time") {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const SystemSpec& system : named_systems()) {
      INFO(system.name << " on " << ranks);
      PlanSpec spec = small_spec({}, ranks);
      spec.system = system;
      const auto plan = make_plan(spec), again = make_plan(spec);
      CHECK(plan->hash == again->hash);
      CHECK(plan->hash.size() == 16);
      CHECK(plan->plan_ns > 0);
      CHECK(plan->waits.size() == plan->graph.num_ops());
      CHECK(plan->memory.arena_bytes >= plan->memory.liveness_bytes);
      CHECK(plan->memory.arena_bytes <= 1.2 * static_cast<double>(plan->memory.liveness_bytes));
    }
  }
}

TEST_CASE("with a lane of their own all-reduces leave the lane of the all-to-alls") {
  PlanSpec spec = small_spec();
  spec.system.sync.lane = ReduceLane::kOwn;
  const auto plan = make_plan(spec);
  const LaneId own = plan->schedule.lane("comm_reduce");
  CHECK(own == LaneId(2));
  CHECK(!plan->orders.lanes[2].empty());
  for (size_t l = 1; l < 3; ++l) {
    for (const OpId op : plan->orders.lanes[l]) {
      CHECK((plan->graph.def(op).collective == Collective::kAllReduce) == (l == 2));
    }
  }
}

TEST_CASE("serial runs one op at a time") {
  const auto plan = make_plan(small_spec({stage("serial")}));
  CHECK(test::makespan(*plan) == static_cast<Nanoseconds>(10 * plan->graph.num_ops()));
}

TEST_CASE("under blocking all-to-alls compute stands still, and all-reduces do not block it") {
  // Cut in two, the second part's all-to-all could run beside the first part's experts.
  for (const double degree : {1, 2}) {
    PlanSpec spec =
        small_spec({stage("capacity_pipeline", {{"degree", degree}}), stage("blocking_a2a")});
    spec.system.sync.lane = ReduceLane::kOwn;
    const auto plan = make_plan(spec);
    int64_t beside_reduce = 0;
    const Timeline timeline = test::simulate(*plan);
    for (const Span& compute : timeline.spans) {
      if (compute.lane != LaneId(0)) continue;
      for (const Span& comm : timeline.spans) {
        if (comm.lane == LaneId(0) || comm.begin >= compute.end || compute.begin >= comm.end) {
          continue;
        }
        CHECK(comm.lane == LaneId(2));
        ++beside_reduce;
      }
    }
    CHECK(beside_reduce > 0);
    CHECK(std::is_sorted(plan->orders.lanes[0].begin(), plan->orders.lanes[0].end()));
  }
}

TEST_CASE("a graph and a schedule given make the plan that the stages made") {
  const auto plan = make_plan(small_spec({stage("dw_schedule")}));
  const auto same = make_plan_of(plan->spec, plan->graph, plan->schedule);
  CHECK(same->hash == plan->hash);
  CHECK(same->orders.lanes == plan->orders.lanes);
}

TEST_CASE("a plan of a graph and an illegal schedule is refused") {
  const auto plan = make_plan(small_spec());
  Schedule schedule = plan->schedule;
  const OpId a2a = plan->graph.find_op("b1.moe.a2a_1");
  schedule.lane_of[a2a.index()] = LaneId(0);
  CHECK_THAT(test::message_of<RunError>([&] { make_plan_of(plan->spec, plan->graph, schedule); }),
             Contains("'b1.moe.a2a_1' is on lane 'compute'"));
}

TEST_CASE("gradients of residents are summed where the device's own are") {
  const auto plan = make_plan(small_spec({stage("eplb")}));
  const std::vector<OpId> sums = test::ops_of(plan->graph, "sum_residents");
  REQUIRE(!sums.empty());
  for (const OpId id : sums) {
    const Op& op = plan->graph.op(id);
    for (size_t i = 0; i < op.outputs.size(); ++i)
      CHECK(plan->memory.buffers[op.outputs[i].index()].alias_of == op.inputs[i + 1]);
  }
}

TEST_CASE("irregular counts of another layer are refused") {
  const auto plan = make_plan(small_spec({stage("irregular_a2a")}));
  Graph graph = plan->graph;
  const Op& other = graph.op(graph.find_op("b1.moe.a2a_1"));
  graph.op(graph.find_op("b3.moe.a2a_1")).inputs[1] = other.inputs[1];
  CHECK_THAT(test::message_of<RunError>([&] { make_plan_of(plan->spec, graph, plan->schedule); }),
             Contains("'b3.moe.a2a_1'") && Contains("'b1.moe.gate'") && Contains("'b3.moe.gate'"));
}

}  // namespace
}  // namespace moe
