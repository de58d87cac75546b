// Transfers that meet on links: replay against the network's own run of the same collectives.
#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/replay/engine.h"
#include "tests/cost/fake_ops.h"
#include "tests/timeline/same_spans.h"

namespace moe {
namespace {

Cluster small_cluster() {
  return {.nodes = 2,
          .devices_per_node = 2,
          .intra = {100e9, 1'000},
          .nic = {10e9, 2'000},
          .nics_per_node = 1};
}

/// Payloads as attributes; a compute op takes attr "ns".
class FakeCost : public CostModel {
 public:
  explicit FakeCost(Cluster cluster, double stretch = 1)
      : cluster_(std::move(cluster)), stretch_(stretch) {}
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    const auto transfer = this->transfer(graph, op);
    if (!transfer) return attr_int(graph.op(op), "ns");
    return std::llround(stretch_ * static_cast<double>(alone_ns(cluster_, *transfer)));
  }
  const Cluster* network() const override { return &cluster_; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override {
    return transfer_on(cluster_, graph, op, {});
  }
  std::string describe() const override { return "fake"; }

 private:
  Cluster cluster_;
  double stretch_;
};

/// A random program on lanes compute, comm and comm_reduce.
Graph random_graph(uint64_t seed, size_t num_ops) {
  Rng rng(seed);
  Graph graph(fake::table());
  graph.num_ranks = 4;
  std::vector<TensorId> made;
  const char* const kinds[] = {"compute", "all_to_all", "all_reduce"};
  for (size_t i = 0; i < num_ops; ++i) {
    std::vector<TensorId> inputs;
    for (int64_t n = rng.below(3); n > 0 && !made.empty(); --n) {
      inputs.push_back(made[static_cast<size_t>(rng.below(static_cast<int64_t>(made.size())))]);
    }
    const OpId op = graph.add_op(
        kinds[rng.below(3)], fmt::format("op{}", i), inputs,
        {{"ns", rng.below(50'000)}, {"bytes", static_cast<double>(1'000 + rng.below(1'000'000))}});
    made.push_back(graph.out(op));
  }
  return graph;
}

Schedule two_lanes(const Graph& graph) {
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const bool reduce =
        graph.def(OpId(static_cast<int64_t>(i))).collective == Collective::kAllReduce;
    if (reduce) schedule.lane_of[i] = LaneId(2);
  }
  return schedule;
}

std::map<OpId, Span> spans_of(const Graph& graph, const Schedule& schedule, const CostModel& cost) {
  const LaneOrders orders = lane_orders(graph, schedule);
  std::map<OpId, Span> spans;
  for (const Span& span : replay(replay_input(graph, schedule, orders, cost)).spans) {
    spans[span.op] = span;
  }
  return spans;
}

TEST_CASE("transfers that meet end as the network says of collectives with the same begins") {
  int64_t slowed = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    Cluster cluster = small_cluster();
    cluster.share = static_cast<Share>(seed % 4);
    cluster.sharing_efficiency = seed % 2 == 0 ? 1 : 0.7;
    const FakeCost cost(cluster);
    const Graph graph = random_graph(seed, 24);
    const std::map<OpId, Span> spans = spans_of(graph, two_lanes(graph), cost);
    std::vector<NetworkOp> ops;
    std::vector<OpId> ids;
    for (const auto& [op, span] : spans) {
      if (graph.def(op).collective == Collective::kNone) continue;
      ops.push_back(*cost.transfer(graph, op));
      ops.back().start_ns = span.begin;
      ids.push_back(op);
    }
    const NetworkRun run = run_collectives(
        cluster, ops, {.share = cluster.share, .efficiency = cluster.sharing_efficiency});
    for (size_t i = 0; i < ids.size(); ++i) {
      const Span& span = spans.at(ids[i]);
      CHECK(std::abs(span.end - run.ops[i].end_ns) <= 1);
      CHECK(span.end - span.begin >= cost.op_ns(graph, ids[i]) - 1);
      slowed += span.end - span.begin > cost.op_ns(graph, ids[i]) + 1;
    }
  }
  CHECK(slowed > 30);
}

TEST_CASE("on one lane, or on exclusive ones, every transfer takes its time alone") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Graph graph = random_graph(seed, 24);
    Schedule exclusive = two_lanes(graph);
    exclusive.exclusive.push_back({{LaneId(1), LaneId(2)}, "test"});
    const FakeCost cost(small_cluster(), 1.5);
    for (const Schedule& schedule : {default_schedule(graph), exclusive}) {
      for (const auto& [op, span] : spans_of(graph, schedule, cost)) {
        CHECK(span.end - span.begin == cost.op_ns(graph, op));
      }
    }
  }
}

TEST_CASE("an engine records links in the runs for which they are asked, and only there") {
  const Graph graph = random_graph(1, 24);
  const FakeCost cost(small_cluster());
  for (const Schedule& schedule : {default_schedule(graph), two_lanes(graph)}) {
    const LaneOrders orders = lane_orders(graph, schedule);
    ReplayInput input = replay_input(graph, schedule, orders, cost);
    Engine engine(input);
    const Timeline plain = engine.run();
    for (const bool keep_links : {true, false, true}) {
      input.keep_links = keep_links;
      const Timeline timeline = engine.run();
      CHECK(timeline.links.empty() != keep_links);
      CHECK(test::same_spans(timeline, plain));
    }
  }
}

TEST_CASE("a model's own time of a collective stretches what it does on shared links") {
  Graph graph(fake::table());
  graph.num_ranks = 4;
  const Attrs attrs{{"bytes", 1e6}};
  const OpId a2a = graph.add_op("all_to_all", "a2a", {}, attrs);
  const OpId reduce = graph.add_op("all_reduce", "reduce", {}, attrs);
  const auto plain = spans_of(graph, two_lanes(graph), FakeCost(small_cluster()));
  const auto slow = spans_of(graph, two_lanes(graph), FakeCost(small_cluster(), 2));
  for (const OpId op : {a2a, reduce}) {
    CHECK(std::abs(slow.at(op).end - 2 * plain.at(op).end) <= 4);
  }
}

TEST_CASE("chunks pay their start-up each, and their bytes once") {
  Graph graph(fake::table());
  graph.num_ranks = 4;
  const OpId work = graph.add_op("compute", "work", {}, {{"n", int64_t{1000}}});
  const OpId send =
      graph.add_op("all_to_all", "send", {graph.out(work)}, {{"bytes", 4e6}, {"n", int64_t{10}}});
  Schedule schedule = default_schedule(graph);
  const FakeCost cost(small_cluster());
  const Nanoseconds whole = cost.op_ns(graph, send);
  schedule.set_chunk(graph, send, 1000);  // of 4000
  const LaneOrders orders = lane_orders(graph, schedule);
  const Timeline timeline = replay(replay_input(graph, schedule, orders, cost));
  REQUIRE(timeline.spans.size() == 5);
  CHECK(std::abs(timeline.spans.back().end - (whole + 3 * 4'000)) <= 4);  // two NIC latencies
}

}  // namespace
}  // namespace moe
