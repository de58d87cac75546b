#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/graph/verify.h"
#include "engine/network/closed_form.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::message_of;
using test::ops_of;
using test::stage;

const char* const kPass = "hierarchical_a2a";

/// Two nodes of two devices unless told otherwise, on a roofline of that cluster.
PlanSpec on_nodes(std::vector<Stage> stages, int64_t nodes = 2, int64_t per_node = 2,
                  int64_t ep = 0) {
  PlanSpec spec = test::small_spec(std::move(stages));
  spec.num_ranks = nodes * per_node;
  test::change_model(spec, [&](test::Gpt2& m) {
    m.experts = 2 * nodes * per_node;
    m.ep = ep;
  });
  spec.cluster.nodes = nodes;
  spec.cluster.devices_per_node = per_node;
  spec.cluster.device = {"d", 1e12, 1e12, 1e11, 0, 0};
  spec.cluster.intra = {100e9, 1'000};
  spec.cluster.nic = {10e9, 3'000};
  spec.cluster.a2a_base_ns = 20'000;
  spec.cluster.a2a_per_peer_ns = 5'000;
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
  return spec;
}

std::string refusal_on(std::vector<Stage> stages, int64_t nodes = 2, int64_t per_node = 2,
                       int64_t ep = 0) {
  return message_of<UserError>(
      [&] { make_plan(on_nodes(std::move(stages), nodes, per_node, ep)); });
}

TEST_CASE("every all-to-all becomes a step in the node and a step between nodes, both ways") {
  const auto plan = make_plan(on_nodes({stage(kPass)}, 3, 2));
  const Graph& graph = plan->graph;
  CHECK(ops_of(graph, "all_to_all").size() == 16);
  CHECK(ops_of(graph, "transpose_blocks").size() == 8);
  const std::vector<OpId> producer = graph.producers();
  for (const OpId id : ops_of(graph, "all_to_all")) {
    const Op& op = graph.op(id);
    const Group group = group_of(graph, op);
    const OpId before = producer[op.inputs[0].index()];
    INFO(op.name);
    const bool first = test::kind(graph, before) != "all_to_all";
    const bool to_expert = op.rows.to_expert();
    CHECK(group == (first == to_expert ? Group{2, 1} : Group{3, 2}));
    if (to_expert) CHECK((test::kind(graph, before) == "transpose_blocks") == first);
  }
  // What the experts see has the shape of the plain exchange.
  const auto plain = make_plan(on_nodes({}, 3, 2));
  for (const char* name : {"b1.moe.fc1", "b1.moe.fc2", "b1.moe.combine", "b3.moe.fc1.dx"}) {
    const auto shape = [name](const Graph& g) { return g.tensor(g.find_tensor(name)).shape; };
    CHECK(shape(graph) == shape(plain->graph));
  }
}

TEST_CASE("the steps stand in the program where the all-to-all stood") {
  const auto plan =
      make_plan(on_nodes({stage("capacity_pipeline", {{"degree", 2.0}}), stage(kPass)}));
  std::vector<std::string> names;
  for (const Op& op : plan->graph.ops()) {
    if (op.layer == 1 && op.phase == Phase::kForward && op.segment == Segment::kDispatch &&
        op.part >= 0) {
      names.push_back(op.name);
    }
  }
  REQUIRE(names.size() == 6);
  for (const size_t part : {0u, 1u}) {
    CHECK_THAT(names[3 * part], Contains(".order"));
    CHECK_THAT(names[3 * part + 1], Contains(".intra"));
    CHECK_THAT(names[3 * part + 2], Contains(".inter"));
  }
}

TEST_CASE("steps cost their closed forms and the re-ordering its traffic") {
  const auto plan = make_plan(on_nodes({stage(kPass)}, 4, 2));
  const Graph& graph = plan->graph;
  const Cluster& cluster = plan->spec.cluster;
  const auto bytes = static_cast<double>(graph.bytes(graph.find_tensor("b1.moe.dispatch")));
  const auto cost = [&](const char* name) {
    return plan->spec.cost->op_ns(graph, graph.find_op(name));
  };
  CHECK(cost("b1.moe.a2a_1.intra") == all_to_all_ns(cluster, bytes / 2, {2, 1}));
  CHECK(cost("b1.moe.a2a_1.inter") == all_to_all_ns(cluster, bytes / 4, {4, 2}));
  // One peer in the node, three in other nodes, in the place of seven.
  CHECK(cost("b1.moe.a2a_1.intra") == 25'000 + 2'000 + std::llround(bytes / 2 / 100e9 * 1e9));
  CHECK(cost("b1.moe.a2a_1.inter") ==
        35'000 + 6'000 + std::llround(2 * 3 * bytes / 4 / 10e9 * 1e9));
  CHECK(cost("b1.moe.a2a_1.order") == duration_ns(2 * bytes, 1e11));
  CHECK(wire_bytes(graph, graph.find_op("b1.moe.a2a_1.intra"), {}) == std::llround(bytes / 2));
  CHECK(wire_bytes(graph, graph.find_op("b1.moe.a2a_1.inter"), {}) == std::llround(bytes * 3 / 4));
  CHECK_THAT(plan->schedule.log.at(0).why,
             Contains("in the node and between nodes") && Contains("ms, was"));
}

TEST_CASE("irregular rows and their counts take the same steps, one exchange a gate") {
  const auto plan = make_plan(on_nodes({stage("irregular_a2a"), stage("used_rows"), stage(kPass)}));
  const Graph& graph = plan->graph;
  CHECK(ops_of(graph, "exchange_counts").size() == 4);   // two layers, two steps
  CHECK(ops_of(graph, "transpose_blocks").size() == 2);  // of the counts
  CHECK(ops_of(graph, "reorder_rows").size() == 8);
  const std::vector<OpId> producer = graph.producers();
  for (const OpId id : ops_of(graph, "all_to_all")) {
    const Op& op = graph.op(id);
    INFO(op.name);
    REQUIRE(op.inputs.size() == 3);
    CHECK(op.rows.irregular);
    const OpId received = producer[op.inputs[2].index()];
    CHECK(test::kind(graph, received) == "exchange_counts");
    CHECK(graph.op(received).inputs[0] == op.inputs[1]);
    CHECK(group_of(graph, graph.op(received)) == group_of(graph, op));
  }
}

TEST_CASE("expert-parallel groups that fill nodes are taken node by node") {
  const auto plan = make_plan(on_nodes({stage(kPass)}, 4, 2, 4));
  for (const OpId id : ops_of(plan->graph, "all_to_all")) {
    const Group group = group_of(plan->graph, plan->graph.op(id));
    CHECK((group == Group{2, 1} || group == Group{2, 2}));
  }
}

TEST_CASE("where there are no two steps the pass says why") {
  CHECK_THAT(refusal_on({stage(kPass)}, 1, 4), Contains("stage 'hierarchical_a2a'") &&
                                                   Contains("op 'b1.moe.a2a_1'") &&
                                                   Contains("4 ranks of one node"));
  CHECK_THAT(refusal_on({stage(kPass)}, 4, 1), Contains("a node has one device"));
  CHECK_THAT(refusal_on({stage(kPass)}, 2, 4, 2), Contains("2 ranks of one node (with 4 devices)"));
  CHECK_THAT(refusal_on({stage(kPass)}, 4, 3, 4),
             Contains("4 ranks, which do not fill nodes of 3"));
  CHECK_THAT(refusal_on({stage(kPass), stage(kPass)}), Contains("is already split into steps"));
  PlanSpec other = on_nodes({stage(kPass)});
  other.cluster.nodes = 4;
  CHECK_THAT(message_of<UserError>([&] { make_plan(other); }),
             Contains("runs on 4 ranks, but the cluster has 8 devices"));
}

TEST_CASE("without an all-to-all there is nothing to do") {
  const auto plan = make_plan(on_nodes({stage(kPass)}, 2, 2, 1));
  CHECK_FALSE(plan->stages[0].changed);
}

}  // namespace
}  // namespace moe
