#include "engine/sim/simulator.h"

#include <catch2/catch.hpp>

#include "engine/replay/replay.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

Cluster four_devices() {
  return {.name = "four",
          .nodes = 2,
          .devices_per_node = 2,
          .device = {.gemm_flops_per_s = 1e12,
                     .vector_flops_per_s = 1e12,
                     .memory_bytes_per_s = 1e12,
                     .launch_ns = 1'000},
          .intra = {100e9, 1'000},
          .nic = {10e9, 2'500}};
}

/// attention -> dispatch | its weight gradient -> experts; the exchange runs beside the gradient.
Plan small_plan() {
  Plan plan{.graph = Graph(fake::table())};
  Graph& g = plan.graph;
  g.num_ranks = 4;
  const OpId attention = g.add_op("compute", "attention", {}, {{"flops", 99e6}});
  const OpId a2a = g.add_op("all_to_all", "a2a", {g.out(attention)}, {{"bytes", 4e6}});
  g.add_op("compute", "dw", {g.out(attention)}, {{"flops", 199e6}});
  g.add_op("compute", "experts", {g.out(a2a)}, {{"flops", 49e6}});
  plan.schedule = default_schedule(g);
  plan.orders = lane_orders(g, plan.schedule);
  plan.memory.arena_bytes = 1000;
  plan.memory.persistent_bytes = 200;
  plan.memory.scratch_bytes = 30;
  plan.spec.cluster = four_devices();
  plan.spec.num_ranks = 4;
  plan.spec.cost = std::make_shared<RooflineCost>(plan.spec.cluster, plan.spec.work);
  return plan;
}

TEST_CASE("the simulator runs a plan in its cost model's time") {
  const Plan plan = small_plan();
  const RunResult result = make_simulator()->run(plan, {});
  REQUIRE(result.timelines.size() == 1);
  REQUIRE(result.metrics.size() == 1);
  CHECK(result.provenance == Provenance::kSimulated);
  CHECK(result.timelines[0].provenance == Provenance::kSimulated);
  // 100 us of attention; then 405 us on the wire beside 200 us of dw; then 50 us of experts.
  const Metrics& m = result.metrics[0];
  CHECK(m.makespan_ns == 555'000);
  CHECK(m.compute_ns == 350'000);
  CHECK(m.comm_ns == 405'000);
  CHECK(m.exposed_comm_ns == 205'000);
  CHECK(m.hidden_comm_ns == 200'000);
  CHECK(m.wait_ns == 0);
}

/// Roofline times; the all-to-all takes 40.5 us of its rank's core and ends 7 us late beside it.
class Sharing : public RooflineCost {
 public:
  using RooflineCost::RooflineCost;
  CoreSharing sharing(const Graph& graph, OpId op) const override {
    const bool shares = graph.def(op).collective != Collective::kNone;
    return shares ? CoreSharing{40'500, 7'000} : CoreSharing{};
  }
};

TEST_CASE("a collective that shares the core makes the compute beside it longer by its share") {
  Plan plan = small_plan();
  plan.spec.cost = std::make_shared<Sharing>(plan.spec.cluster, plan.spec.work);
  const Metrics m = make_simulator()->run(plan, {}).metrics[0];
  CHECK(m.makespan_ns == 555'000);  // 200 us of dw take 20 more, under the exchange
  CHECK(m.compute_ns == 370'000);   // attention and experts have the core for themselves
  CHECK(m.exposed_comm_ns == 185'000);
}

TEST_CASE("a collective that shares the core ends late where it ends under compute") {
  Plan plan = small_plan();
  plan.graph.op(OpId(2)).attrs["flops"] = 599e6;  // dw: 600 us, longer than the exchange
  plan.spec.cost = std::make_shared<Sharing>(plan.spec.cluster, plan.spec.work);
  const Metrics m = make_simulator()->run(plan, {}).metrics[0];
  CHECK(m.comm_ns == 405'000 + 7'000);
  CHECK(m.compute_ns == 750'000 + 40'500);
}

/// Roofline times on a cluster whose compute is slower beside transfers.
Plan slowed_down(OverlapSlowdown slowdown) {
  Plan plan = small_plan();
  plan.spec.cluster.overlap_slowdown = slowdown;
  plan.spec.cost = std::make_shared<RooflineCost>(plan.spec.cluster, plan.spec.work);
  return plan;
}

TEST_CASE("compute beside a transfer takes its class's factor longer, the rest its own time") {
  // dw is no GEMM here: 200 us, all beside the exchange of 405 us.
  const Metrics m = make_simulator()->run(slowed_down({.gemm = 3, .memory = 1.25}), {}).metrics[0];
  CHECK(m.compute_ns == 350'000 + 50'000);
  CHECK(m.comm_ns == 405'000);
  CHECK(m.makespan_ns == 555'000);
  CHECK(m.exposed_comm_ns == 155'000);
}

TEST_CASE("an op that outlasts the transfer is slowed down while it lasts, and delays what waits") {
  Plan plan = slowed_down({.memory = 1.2});
  plan.graph.op(OpId(2)).attrs["flops"] = 599e6;  // dw: 600 us, 405 of them beside the exchange
  const Metrics m = make_simulator()->run(plan, {}).metrics[0];
  CHECK(m.compute_ns == 750'000 + 81'000);
  CHECK(m.comm_ns == 405'000);
}

TEST_CASE("without a slowdown the simulator's times are those of ops alone") {
  CHECK(make_simulator()->run(slowed_down({}), {}).metrics[0].makespan_ns == 555'000);
  CHECK(make_simulator()->run(slowed_down({.gemm = 2}), {}).metrics[0].compute_ns == 350'000);
}

TEST_CASE("a simulation reports the plan's memory and order, and no losses") {
  const Plan plan = small_plan();
  const RunResult result = make_simulator()->run(plan, {});
  CHECK(result.peak_bytes == 1230);
  REQUIRE(result.executed.size() == 1);
  CHECK(result.executed[0] == plan.orders.lanes);
  CHECK(result.losses.empty());
}

TEST_CASE("simulated spans carry what a rank puts on the wire") {
  const Plan plan = small_plan();
  const RunResult result = make_simulator()->run(plan, {});
  for (const Span& span : result.timelines[0].spans) {
    CHECK(span.bytes == (plan.graph.op(span.op).name == "a2a" ? 3'000'000 : 0));
  }
}

TEST_CASE("the simulator follows the plan's lane orders") {
  Plan plan = small_plan();
  plan.schedule.before(plan.graph.find_op("dw"), plan.graph.find_op("a2a"), "test", "no overlap");
  plan.orders = lane_orders(plan.graph, plan.schedule);
  const Metrics m = make_simulator()->run(plan, {}).metrics[0];
  CHECK(m.makespan_ns == 755'000);
  CHECK(m.hidden_comm_ns == 0);
}

}  // namespace
}  // namespace moe
