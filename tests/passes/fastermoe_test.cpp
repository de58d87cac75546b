// FasterMoE's schedule: which ops there are, in which order they run, and what is refused.
#include <catch2/catch.hpp>

#include <map>

#include "engine/base/errors.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::message_of;
using test::ops_of;
using test::small_spec;
using test::stage;

Stage rounds(double groups) {
  return stage("fastermoe_pipeline", {{"groups", groups}});
}

std::string refusal(PlanSpec spec) {
  return message_of<UserError>([&] { make_plan(std::move(spec)); });
}

/// When S, C and R of each round begin in layer 1's forward, counted from the first.
std::map<std::string, Nanoseconds> begins_of(const Plan& plan) {
  std::map<std::string, Nanoseconds> begins;
  for (const Span& span : test::simulate(plan).spans) {
    const Op& op = plan.graph.op(span.op);
    if (span.rank != 0 || op.layer != 1 || op.phase != Phase::kForward || op.part < 0) continue;
    const std::string round = fmt::format("{}", op.part);
    if (op.rows.to_expert()) begins["S" + round] = span.begin;
    if (op.rows.to == RowUse::To::kSource) begins["R" + round] = span.begin;
    if (op.name.find("fc1") != std::string::npos) begins["C" + round] = span.begin;
  }
  const Nanoseconds first = begins.at("S0");
  for (auto& [name, at] : begins) at -= first;
  return begins;
}

/// A transfer takes `transfer` ns, any other op 10.
PlanSpec spec_with(Nanoseconds transfer, std::vector<Stage> stages, int64_t ranks = 4) {
  PlanSpec spec = small_spec(std::move(stages), ranks);
  spec.cost = std::make_shared<test::GivenCost>([transfer](const Graph& graph, OpId op) {
    return graph.def(op).collective == Collective::kNone ? Nanoseconds{10} : transfer;
  });
  return spec;
}

TEST_CASE("all sends stand before all returns on the wire, experts run as their round has come") {
  using Begins = std::map<std::string, Nanoseconds>;
  // The experts of a round are three ops of 10 ns.
  CHECK(begins_of(*make_plan(spec_with(40, {rounds(4)}))) ==
        Begins{{"S0", 0},
               {"S1", 40},
               {"S2", 80},
               {"S3", 120},  // the wire has no gap
               {"C0", 40},
               {"C1", 80},
               {"C2", 120},
               {"C3", 160},  // as their rows are there
               {"R0", 160},
               {"R1", 200},
               {"R2", 240},
               {"R3", 280}});
  CHECK(begins_of(*make_plan(spec_with(10, {rounds(2)}))) ==
        Begins{{"S0", 0}, {"S1", 10}, {"C0", 10}, {"C1", 40}, {"R0", 40}, {"R1", 70}});
}

TEST_CASE("rounds keep work and payload, in the backward too") {
  const auto sums = [](const Graph& graph) {
    double flops = 0, payload = 0;
    Bytes wire = 0;
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId op(static_cast<int64_t>(i));
      const Work work = graph.def(op).work(graph, graph.op(op), {});
      if (work.gemm() && graph.op(op).segment == Segment::kExpert) flops += work.flops;
      if (graph.def(op).collective != Collective::kAllToAll) continue;
      payload += payload_bytes(graph, op, {});
      wire += wire_bytes(graph, op, {});
    }
    return std::tuple(flops, payload, wire);
  };
  const auto whole = sums(make_plan(small_spec({}, 4))->graph);
  for (const int groups : {2, 4}) {
    const auto plan = make_plan(small_spec({rounds(groups)}, 4));
    CHECK(sums(plan->graph) == whole);
    CHECK(ops_of(plan->graph, "all_to_all").size() == static_cast<size_t>(8 * groups));
    CHECK(ops_of(plan->graph, "split_peers").size() == 4);
    CHECK(ops_of(plan->graph, "join_peers").size() == 4);
  }
}

TEST_CASE("groups are the nodes, the ranks where there is one node, and none is no change") {
  const auto log = [](PlanSpec spec) { return make_plan(std::move(spec))->schedule.log.at(0).why; };
  PlanSpec spec = small_spec({stage("fastermoe_pipeline")}, 4);
  CHECK_THAT(log(spec), Contains("4 rounds between groups of 1 ranks"));
  spec.cluster.nodes = 2;
  spec.cluster.devices_per_node = 2;
  CHECK_THAT(log(spec), Contains("2 rounds between groups of 2 ranks"));
  CHECK(make_plan(small_spec({rounds(1)}, 4))->hash == make_plan(small_spec({}, 4))->hash);
  CHECK(!make_plan(small_spec({stage("fastermoe_pipeline")}, 1))->stages[0].changed);
}

TEST_CASE("what rounds cannot carry is refused with the op and the reason") {
  CHECK_THAT(refusal(small_spec({rounds(3)}, 4)),
             Contains("fastermoe_pipeline.groups = 3: must divide the 4 ranks"));
  CHECK_THAT(refusal(small_spec({rounds(1.5)}, 4)), Contains("a whole number"));
  CHECK_THAT(refusal(small_spec({stage("used_rows"), rounds(2)}, 4)),
             Contains("'b1.moe.a2a_1' carries padded slots") && Contains("add irregular_a2a"));
  PlanSpec steps = small_spec({rounds(2), stage("hierarchical_a2a")}, 4);
  steps.cluster.nodes = steps.cluster.devices_per_node = 2;
  CHECK_THAT(refusal(steps), Contains("is cut into rounds by fastermoe_pipeline"));
  std::swap(steps.system.stages[0], steps.system.stages[1]);
  CHECK_THAT(refusal(steps), Contains("hierarchical_a2a"));
  PlanSpec in_groups = small_spec({rounds(2)}, 4);
  test::change_model(in_groups, [&](test::Gpt2& m) { m.ep = 2; });
  CHECK_THAT(make_plan(in_groups)->schedule.log.at(0).why,
             Contains("2 rounds between groups of 1"));
}

}  // namespace
}  // namespace moe
