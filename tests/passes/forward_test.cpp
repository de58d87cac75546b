#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::message_of;
using test::ops_of;
using test::small_spec;
using test::stage;

Stage cut(double degree) {
  return stage("capacity_pipeline", {{"degree", degree}});
}

std::string refusal(std::vector<Stage> stages) {
  return message_of<UserError>([&] { make_plan(small_spec(std::move(stages))); });
}

TEST_CASE(
    "irregular all-to-alls take counts both ways, exchanged once per layer, backward included") {
  const auto plan = make_plan(small_spec({stage("irregular_a2a")}));
  const Graph& graph = plan->graph;
  CHECK(ops_of(graph, "exchange_counts").size() == 2);
  const std::vector<OpId> transfers = ops_of(graph, "all_to_all");
  CHECK(transfers.size() == 8);
  const std::vector<OpId> producer = graph.producers();
  for (const OpId id : transfers) {
    const Op& op = graph.op(id);
    CHECK(op.rows.irregular);
    CHECK(test::kind(graph, producer[op.inputs[1].index()]) == "gate");
    const OpId exchange = producer[op.inputs[2].index()];
    CHECK(test::kind(graph, exchange) == "exchange_counts");
    CHECK(graph.op(exchange).layer == op.layer);
    CHECK(graph.op(exchange).phase == Phase::kForward);
  }
}

TEST_CASE("used rows reach every expert op, and share the exchange with irregular all-to-alls") {
  for (const bool irregular : {false, true}) {
    std::vector<Stage> stages{stage("used_rows")};
    if (irregular) stages.push_back(stage("irregular_a2a"));
    const auto plan = make_plan(small_spec(stages));
    CHECK(ops_of(plan->graph, "exchange_counts").size() == 2);
    for (const char* kind : {"expert_linear", "expert_linear_dx", "expert_linear_dw"}) {
      CHECK(ops_of(plan->graph, kind).size() == 4);
      for (const OpId op : ops_of(plan->graph, kind)) {
        CHECK(attr_string(plan->graph.op(op), "rows") == "used");
      }
    }
  }
}

TEST_CASE("on one rank transfers do not exist and experts count by the gate alone") {
  const auto plan = make_plan(small_spec({stage("irregular_a2a"), stage("used_rows"), cut(2)}, 1));
  CHECK(!plan->stages[0].changed);
  CHECK(plan->stages[1].changed);
  CHECK(!plan->stages[2].changed);
  CHECK(ops_of(plan->graph, "exchange_counts").empty());
  const std::vector<OpId> producer = plan->graph.producers();
  for (const OpId op : ops_of(plan->graph, "expert_linear")) {
    const OpId counted = producer[plan->graph.op(op).inputs[3].index()];
    CHECK(test::kind(plan->graph, counted) == "gate");
  }
}

/// Flops of experts and payload of all-to-alls over the step.
std::pair<double, double> expert_work(const Graph& graph) {
  double flops = 0, bytes = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const Work work = graph.def(op).work(graph, graph.op(op), {});
    if (work.gemm() && graph.op(op).segment == Segment::kExpert) flops += work.flops;
    if (graph.def(op).collective == Collective::kAllToAll) bytes += work.bytes;
  }
  return {flops, bytes};
}

TEST_CASE("a cut along the capacity keeps the work, in the backward too, at any degree") {
  const auto whole = expert_work(make_plan(small_spec())->graph);
  CHECK(whole.first > 0);
  for (const int degree : {2, 3, 4, 7, 10}) {
    const auto plan = make_plan(small_spec({cut(degree)}));
    const auto parts = expert_work(plan->graph);
    CHECK(parts.first == Approx(whole.first));
    CHECK(parts.second == Approx(whole.second));
    CHECK(ops_of(plan->graph, "all_to_all").size() == static_cast<size_t>(8 * degree));
    CHECK(ops_of(plan->graph, "expert_linear_dw").size() == static_cast<size_t>(4 * degree));
  }
}

TEST_CASE("a capacity that the degree does not divide is cut into lengths that differ by one") {
  const auto plan = make_plan(small_spec({cut(4)}));
  std::vector<int64_t> lengths;
  for (const OpId id : ops_of(plan->graph, "all_to_all")) {
    const Op& op = plan->graph.op(id);
    if (op.layer == 1 && op.phase == Phase::kForward && op.rows.to_expert()) {
      lengths.push_back(plan->graph.tensor(op.inputs[0]).shape[1]);
    }
  }
  CHECK(lengths == std::vector<int64_t>{3, 3, 2, 2});
  CHECK_THAT(plan->schedule.log.at(0).why, Contains("capacity 10 cut into parts of 3, 3, 2, 2"));
}

TEST_CASE("a degree of 1 leaves the graph alone") {
  const auto plan = make_plan(small_spec({cut(1)}));
  CHECK(!plan->stages[0].changed);
  CHECK(plan->hash == make_plan(small_spec())->hash);
}

TEST_CASE("a degree above the capacity is refused with both numbers") {
  CHECK_THAT(refusal({cut(11)}), Contains("capacity_pipeline.degree = 11") &&
                                     Contains("b1.moe.a2a_1") && Contains("1 to 10 is allowed"));
}

TEST_CASE("half a part is refused") {
  CHECK_THAT(refusal({cut(2.5)}), Contains("capacity_pipeline.degree = 2.5"));
}

TEST_CASE("rows that only the experts count and a cut along the capacity refuse each other") {
  CHECK_THAT(refusal({stage("used_rows"), cut(2)}),
             Contains("stage 'capacity_pipeline'") && Contains("used_rows") && Contains("b1.moe."));
  CHECK(refusal({stage("used_rows"), stage("irregular_a2a"), cut(2)}).empty());
}

TEST_CASE("counted rows are cut without copies, and exchange their counts once") {
  const Graph whole = make_plan(small_spec({stage("irregular_a2a")}))->graph;
  const auto plan = make_plan(small_spec({stage("irregular_a2a"), cut(2)}));
  const Graph& graph = plan->graph;
  CHECK(ops_of(graph, "all_to_all").size() == 2 * ops_of(whole, "all_to_all").size());
  CHECK(ops_of(graph, "exchange_counts").size() == ops_of(whole, "exchange_counts").size());
  CHECK(ops_of(graph, "split").empty());
  CHECK(ops_of(graph, "concat").empty());
  // GELU cannot overwrite its input any more, of which all parts are in one storage.
  const Bytes whole_bytes = make_plan(small_spec({stage("irregular_a2a")}))->memory.peak_bytes();
  CHECK(plan->memory.peak_bytes() <= whole_bytes + whole_bytes / 20);
}

TEST_CASE("a part can be cut again") {
  for (const bool counted : {false, true}) {
    std::vector<Stage> stages = {cut(2), cut(2)};
    if (counted) stages.push_back(stage("irregular_a2a"));
    const Graph graph = make_plan(small_spec(stages))->graph;
    CHECK(graph.op(graph.find_op("b1.moe.gelu.p1.p0")).part == 2);
  }
}

/// The makespan of the small step in which only these ops of block 1 take time, `ns` in all parts.
Nanoseconds pipelined(double degree, const std::string& transfer, const std::string& compute) {
  PlanSpec spec = small_spec({cut(degree)});
  spec.cost = std::make_shared<test::GivenCost>([=](const Graph& graph, OpId op) {
    const std::string& name = graph.op(op).name;
    const bool counts = name.starts_with(transfer) || name.starts_with(compute);
    const bool backward = graph.op(op).phase == Phase::kBackward;
    const bool cut_op = degree == 1 || graph.op(op).part >= 0;  // not the split and the concat
    const bool wanted = transfer.ends_with("2") == backward && !graph.op(op).is_dw && cut_op;
    return counts && wanted ? static_cast<Nanoseconds>(1000 / degree) : Nanoseconds{0};
  });
  return test::makespan(*make_plan(spec));
}

TEST_CASE("in program order, balanced stages cut into d parts hide (d-1)/d, forward and backward") {
  // A step that waits d-1 times too often would take 2000.
  for (const double d : {1, 2, 5, 10}) {
    const auto expected = static_cast<Nanoseconds>(1000 + 1000 / d);
    CHECK(pipelined(d, "b1.moe.a2a_1", "b1.moe.fc1") == expected);
    CHECK(pipelined(d, "b1.moe.a2a_2", "b1.moe.fc2") == expected);
  }
}

}  // namespace
}  // namespace moe
