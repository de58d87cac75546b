// The account of exposed time: exact on random programs, and each cause on a program made for it.
#include "engine/analysis/explain.h"

#include <catch2/catch.hpp>
#include <map>

#include "engine/analysis/findings.h"
#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/schedule/legality.h"
#include "engine/timeline/metrics.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

OpId op_id(size_t i) {
  return OpId(static_cast<int64_t>(i));
}

/// A cluster of two nodes of two, payloads as attributes, compute by attr "ns".
class FakeCost : public CostModel {
 public:
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    const auto sent = transfer(graph, op);
    return sent ? alone_ns(cluster_, *sent) : attr_int(graph.op(op), "ns");
  }
  const Cluster* network() const override { return &cluster_; }
  std::optional<NetworkOp> transfer(const Graph& graph, OpId op) const override {
    return transfer_on(cluster_, graph, op, {});
  }
  Nanoseconds handoff_ns() const override { return 500; }
  std::string describe() const override { return "fake"; }

 private:
  Cluster cluster_{.nodes = 2,
                   .devices_per_node = 2,
                   .intra = {100e9, 1'000},
                   .nic = {10e9, 2'000},
                   .nics_per_node = 1};
};

struct Program {
  Graph graph{fake::table()};
  Schedule schedule;
  LaneOrders orders;
  int32_t num_ranks = 1;
  Nanoseconds handoff_ns = 0, pick_ns = 0, chunk_start_ns = 0;
  std::vector<Nanoseconds> durations;  // by op * num_ranks + rank

  OpId add(const char* kind, const char* name, std::vector<OpId> inputs, Nanoseconds ns) {
    std::vector<TensorId> tensors;
    for (const OpId op : inputs) tensors.push_back(graph.out(op));
    for (int32_t r = 0; r < num_ranks; ++r) durations.push_back(ns);
    return graph.add_op(kind, name, std::move(tensors), {{"n", int64_t{100}}});
  }
  /// Lanes compute, comm, comm_reduce.
  void two_lanes() {
    schedule = default_schedule(graph);
    schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const bool reduce = graph.def(op_id(i)).collective == Collective::kAllReduce;
      if (reduce) schedule.lane_of[i] = LaneId(2);
    }
  }
  Nanoseconds duration(OpId op, int32_t rank) const {
    return durations[op.index() * static_cast<size_t>(num_ranks) + static_cast<size_t>(rank)];
  }
  Nanoseconds slowest(OpId op) const {
    Nanoseconds most = 0;
    for (int32_t r = 0; r < num_ranks; ++r) most = std::max(most, duration(op, r));
    return most;
  }
  ReplayInput input_of(const Schedule& s, const LaneOrders& o) const {
    return {.graph = graph,
            .schedule = s,
            .orders = o,
            .num_ranks = num_ranks,
            .duration_ns = [this](OpId op, int32_t rank) { return duration(op, rank); },
            .handoff_ns = handoff_ns,
            .chunk_ns = [this](OpId op, int32_t,
                               int64_t n) { return (slowest(op) + n - 1) / n + chunk_start_ns; },
            .pick_ns = pick_ns};
  }
  ReplayInput input() const { return input_of(schedule, orders); }
  Explanation explained() {
    orders = lane_orders(graph, schedule);
    return explain(input(), replay(input()));
  }
  std::vector<Finding> found() {
    const Explanation e = explained();
    return findings(
        {.graph = graph,
         .schedule = schedule,
         .explanation = e,
         .make_input = [this](const Schedule& s, const LaneOrders& o) { return input_of(s, o); }});
  }
};

Program random_program(uint64_t seed) {
  Rng rng(seed);
  Program p;
  p.num_ranks = p.graph.num_ranks = 1 + static_cast<int32_t>(seed % 4);
  p.handoff_ns = rng.below(3);
  p.pick_ns = rng.below(3);
  p.chunk_start_ns = rng.below(3);
  const char* const kinds[] = {"compute", "compute", "all_to_all", "all_reduce"};
  for (size_t i = 0; i < 40; ++i) {
    std::vector<OpId> inputs;
    for (int64_t n = rng.below(3); n > 0 && i > 0; --n) {
      inputs.emplace_back(rng.below(static_cast<int64_t>(i)));
    }
    p.add(kinds[rng.below(4)], fmt::format("op{}", i).c_str(), inputs, 0);
  }
  for (Nanoseconds& ns : p.durations) ns = rng.below(20);
  p.two_lanes();
  const int64_t form = rng.below(4);
  if (form & 1) p.schedule.lanes[1].pick = Pick::kPriority;
  if (form & 2) p.schedule.exclusive.push_back({{LaneId(1), LaneId(2)}, "shares"});
  for (int n = 0; n < 8; ++n) {
    const int64_t to = 1 + rng.below(39);
    p.schedule.before(OpId(rng.below(to)), OpId(to), "orders", "random");
  }
  for (size_t i = 0; i < p.graph.num_ops(); ++i) {
    if (p.graph.def(op_id(i)).collective == Collective::kNone) continue;
    p.schedule.set_priority(op_id(i), rng.below(3));
    const Bytes message = message_bytes(p.graph, op_id(i));
    if (message > 0 && rng.below(3) == 0) {
      p.schedule.set_chunk(p.graph, op_id(i), 1 + rng.below(message));
    }
  }
  p.orders = lane_orders(p.graph, p.schedule);
  for (int n = 0; n < 12; ++n) {
    p.schedule.holds.push_back({OpId(rng.below(40)), OpId(rng.below(40)), "holds"});
    try {
      check_legal(p.graph, p.schedule, {&p.orders, 1}, plan_memory(p.graph, p.schedule, p.orders));
    } catch (const RunError&) {
      p.schedule.holds.pop_back();
    }
  }
  return p;
}

/// What metrics() says of one rank alone.
Nanoseconds exposed_on(const Graph& graph, const Timeline& timeline, int32_t rank) {
  Timeline alone;
  for (Span span : timeline.spans) {
    if (span.rank != rank) continue;
    span.rank = 0;
    alone.spans.push_back(span);
  }
  return metrics(graph, alone).exposed_comm_ns;
}

void check_exact(const ReplayInput& input, const Timeline& timeline,
                 std::map<Cause, Nanoseconds>& seen) {
  const Explanation e = explain(input, timeline);
  REQUIRE(e.exposed_ns.size() == static_cast<size_t>(timeline.num_ranks));
  Nanoseconds total = 0, causes = 0, collectives = 0;
  for (int32_t r = 0; r < timeline.num_ranks; ++r) {
    REQUIRE(e.exposed_ns[static_cast<size_t>(r)] == exposed_on(input.graph, timeline, r));
    total += e.exposed_ns[static_cast<size_t>(r)];
  }
  for (const Exposure& x : e.exposures) {
    REQUIRE(x.ns > 0);
    REQUIRE(input.graph.def(x.op).lane == LaneKind::kComm);
    CHECK(cause_text(input.graph, input.schedule, x) != "");
    causes += x.ns;
    seen[x.cause] += x.ns;
  }
  for (const CollectiveShare& c : e.collectives) {
    collectives += c.exposed_ns;
    Nanoseconds by_ops = 0;
    for (const auto& [op, ns] : c.hidden_by) by_ops += ns;
    CHECK(c.hidden_ns == by_ops);
  }
  REQUIRE(causes == total);
  REQUIRE(collectives == total);
  CHECK(metrics(input.graph, timeline).exposed_comm_ns == total / timeline.num_ranks);
}

TEST_CASE("the causes add up to the exposed time of every rank, to the nanosecond") {
  std::map<Cause, Nanoseconds> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    const Program p = random_program(seed);
    check_exact(p.input(), replay(p.input()), seen);
  }
  for (const Cause cause : {Cause::kData, Cause::kOrderEdge, Cause::kLaneOrder, Cause::kLaneBusy,
                            Cause::kMembers, Cause::kHold, Cause::kCoordination, Cause::kStartUp}) {
    INFO(name_of(cause));
    CHECK(seen[cause] > 0);
  }
}

TEST_CASE("they add up where transfers share links") {
  const FakeCost cost;
  std::map<Cause, Nanoseconds> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Program p = random_program(seed);
    p.graph.num_ranks = 4;
    Rng rng(seed);
    for (size_t i = 0; i < p.graph.num_ops(); ++i) {
      p.graph.op(op_id(i)).attrs["ns"] = rng.below(50'000);
      p.graph.op(op_id(i)).attrs["bytes"] = static_cast<double>(1'000 + rng.below(1'000'000));
    }
    const ReplayInput input = replay_input(p.graph, p.schedule, p.orders, cost);
    check_exact(input, replay(input), seen);
  }
  CHECK(seen[Cause::kContention] > 0);
}

TEST_CASE("they add up on timelines that no replay makes: late wakes, jitter, skewed clocks") {
  std::map<Cause, Nanoseconds> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    const Program p = random_program(seed);
    Timeline timeline = replay(p.input());
    Rng rng(seed);
    for (Span& span : timeline.spans) {
      span.post = std::max<Nanoseconds>(span.post + rng.below(9) - 4, 0);
      span.begin = std::max(span.begin + rng.below(9) - 4, span.post);
      span.end = std::max(span.end + rng.below(9) - 4, span.begin);
    }
    check_exact(p.input(), timeline, seen);
  }
}

/// The causes of one collective: text -> ns.
std::map<std::string, Nanoseconds> causes(const Program& p, const Explanation& e, OpId op) {
  std::map<std::string, Nanoseconds> found;
  for (const Exposure& x : e.exposures) {
    if (x.op == op) found[cause_text(p.graph, p.schedule, x)] += x.ns;
  }
  return found;
}

using Causes = std::map<std::string, Nanoseconds>;

TEST_CASE("what an op needs and nothing hides is a data edge's") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId sent = p.add("all_to_all", "sent", {a}, 30);
  p.add("compute", "b", {sent}, 5);
  p.two_lanes();
  const Explanation e = p.explained();
  CHECK(causes(p, e, sent) == Causes{{"'b' needs it (data, tensor 'sent')", 30}});
  CHECK(e.bound.ns() == 45);
  CHECK(e.makespan_ns == 45);
}

TEST_CASE("an op that could run meanwhile accounts for its own time") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId sent = p.add("all_to_all", "sent", {a}, 30);
  const OpId b = p.add("compute", "b", {sent}, 5);
  const OpId free = p.add("compute", "free", {a}, 12);
  p.two_lanes();
  p.schedule.before(b, free, "mine", "a reason");
  CHECK(causes(p, p.explained(), sent) ==
        Causes{{"'b' needs it (data, tensor 'sent')", 18},
               {"'free' waits for 'b' (order edge of stage 'mine': a reason)", 12}});
  const std::vector<Finding> found = p.found();
  REQUIRE(found.size() >= 1);
  CHECK(found[0].gain_ns == 12);
  CHECK(found[0].exposure.to == free);
  CHECK(found[0].exposure.stage == "mine");
  p.schedule.order_edges.clear();
  CHECK(causes(p, p.explained(), sent) == Causes{{"'b' needs it (data, tensor 'sent')", 18},
                                                 {"'free' was ready, but comes after 'b'", 12}});
}

TEST_CASE("an op that ran before a collective that did not need it accounts for its own time") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId dw = p.add("compute", "dw", {a}, 8);
  const OpId dx = p.add("compute", "dx", {a}, 6);
  const OpId sent = p.add("all_to_all", "sent", {dx}, 30);
  p.add("compute", "b", {sent, dw}, 5);
  p.two_lanes();
  p.schedule.before(dw, dx, "mine", "first");
  CHECK(causes(p, p.explained(), sent) ==
        Causes{{"'b' needs it (data, tensor 'sent')", 22},
               {"'dx' waits for 'dw' (order edge of stage 'mine': first)", 8}});
  CHECK(p.found()[0].gain_ns == 8);
}

TEST_CASE("a collective posted late by an order edge is exposed by it, though only later") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId sent = p.add("all_reduce", "sent", {a}, 30);
  const OpId b = p.add("compute", "b", {a}, 40);
  p.add("compute", "c", {sent, b}, 5);
  p.two_lanes();
  p.schedule.before(b, sent, "mine", "after the backward");
  CHECK(causes(p, p.explained(), sent) ==
        Causes{{"'sent' waits for 'b' (order edge of stage 'mine': after the backward)", 30}});
  CHECK(p.found()[0].gain_ns == 30);
}

TEST_CASE("a busy lane, chunks, a hold and late members are told apart") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId low = p.add("all_reduce", "low", {a}, 40);
  const OpId high = p.add("all_to_all", "high", {a}, 20);
  p.add("compute", "b", {high}, 5);
  p.add("compute", "c", {low}, 5);
  p.schedule = default_schedule(p.graph);
  CHECK(causes(p, p.explained(), high) ==
        Causes{{"'b' needs it (data, tensor 'high')", 20}, {"lane 'comm' carried 'low'", 40}});
  CHECK(p.found()[0].exposure.from == low);

  p.two_lanes();
  p.chunk_start_ns = 3;
  p.schedule.set_chunk(p.graph, high, 100);  // of 400
  CHECK(causes(p, p.explained(), high) ==
        Causes{{"'b' needs it (data, tensor 'high')", 20}, {"chunks", 12}});
  CHECK(p.found()[0].exposure.op == high);

  p.schedule.chunk_bytes.clear();
  p.schedule.exclusive = {{{LaneId(1), LaneId(2)}, "shares"}};
  p.schedule.set_priority(high, 1);
  p.schedule.holds = {{a, high, "lina"}};
  CHECK(causes(p, p.explained(), high) == Causes{{"'b' needs it (data, tensor 'high')", 20}});

  Program q;
  q.num_ranks = 2;
  const OpId work = q.add("compute", "work", {}, 10);
  const OpId sent = q.add("all_to_all", "sent", {work}, 20);
  q.add("compute", "b", {sent}, 5);
  q.durations[1] = 17;
  q.two_lanes();
  CHECK(causes(q, q.explained(), sent) == Causes{{"'b' needs it (data, tensor 'sent')", 40},
                                                 {"rank 1 posted it last, after 'work'", 7}});
}

TEST_CASE("a hold that begins long before what it waits for is found") {
  Program p;
  const OpId a = p.add("compute", "a", {}, 10);
  const OpId low = p.add("all_reduce", "low", {a}, 40);
  const OpId b = p.add("compute", "b", {a}, 60);
  const OpId high = p.add("all_to_all", "high", {b}, 5);
  const OpId c = p.add("compute", "c", {high}, 5);
  p.add("compute", "d", {low, c}, 5);
  p.two_lanes();
  p.schedule.exclusive = {{{LaneId(1), LaneId(2)}, "shares"}};
  p.schedule.set_priority(high, 1);
  p.schedule.holds = {{a, high, "lina"}};
  const std::vector<Finding> found = p.found();
  REQUIRE(!found.empty());
  CHECK(found[0].exposure.cause == Cause::kHold);
  CHECK(found[0].exposure.from == a);
  CHECK(found[0].exposure.stage == "lina");
}

}  // namespace
}  // namespace moe
