#include "engine/schedule/legality.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/schedule/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using fake::add;
using fake::message_of;

/// A schedule with what it leads to, for two ranks, to be spoilt.
struct Case {
  Graph graph;
  Schedule schedule;
  std::vector<LaneOrders> ranks;
  MemoryPlan memory;

  Case(Graph g, Schedule s) : graph(std::move(g)), schedule(std::move(s)) {
    ranks.assign(2, lane_orders(graph, schedule));
    memory = plan_memory(graph, schedule, ranks[0]);
  }
  std::string refusal() const {
    return message_of<RunError>([this] { check_legal(graph, schedule, ranks, memory); });
  }
  OpId at(size_t rank, size_t lane, size_t i) const { return ranks[rank].lanes[lane][i]; }
  std::string name(OpId op) const { return "'" + graph.op(op).name + "'"; }
};

Case random_case(uint64_t seed) {
  Graph graph = fake::random_graph(seed, 60);
  Schedule schedule = fake::random_schedule(graph, seed, 6);
  return {std::move(graph), std::move(schedule)};
}

TEST_CASE("what lane_orders and plan_memory make is legal") {
  for (uint64_t seed = 0; seed < 30; ++seed) CHECK(random_case(seed).refusal() == "");
}

TEST_CASE("a dropped op is refused by name, lane and rank") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Case c = random_case(seed);
    Rng rng(seed);
    auto& lane = c.ranks[1].lanes[static_cast<size_t>(rng.below(3))];
    if (lane.empty()) continue;
    const auto i = rng.below(static_cast<int64_t>(lane.size()));
    const std::string name = c.name(lane[static_cast<size_t>(i)]);
    lane.erase(lane.begin() + i);
    CHECK_THAT(c.refusal(), Contains(name + " is missing from lane") && Contains("rank 1"));
  }
}

TEST_CASE("a doubled op is refused by name and lane") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Case c = random_case(seed);
    auto& lane = c.ranks[0].lanes[0];
    const auto i = static_cast<size_t>(Rng(seed).below(static_cast<int64_t>(lane.size())));
    lane.push_back(lane[i]);
    CHECK_THAT(c.refusal(), Contains(c.name(lane[i])) && Contains("a second time") &&
                                Contains("lane 'compute'") && Contains("rank 0"));
  }
}

TEST_CASE("two ops of a lane against an edge are refused with both, the lane and the edge") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Case c = random_case(seed);
    // The last pair of neighbours on the compute lane with an edge between them.
    const HappensBefore hb(c.graph, c.schedule, c.ranks[0]);
    const Dependencies deps = dependencies(c.graph);
    auto& lane = c.ranks[0].lanes[0];
    for (size_t i = lane.size() - 1; i > 0; --i) {
      const auto& preds = deps.preds[lane[i].index()];
      if (std::find(preds.begin(), preds.end(), lane[i - 1]) == preds.end()) continue;
      std::swap(lane[i - 1], lane[i]);
      CHECK_THAT(c.refusal(), Contains(c.name(lane[i - 1]) + " comes before op " + c.name(lane[i]) +
                                       " on lane 'compute'") &&
                                  (Contains("data, tensor") || Contains("overwrites")));
      break;
    }
  }
}

TEST_CASE("lanes against an order edge are refused with its stage and reason") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a"), b = add(graph, "work", "b");
  Case c(graph, default_schedule(graph));
  c.schedule.before(b, a, "my_policy", "as it likes");
  CHECK(c.ranks[0].lanes[0] == std::vector<OpId>{a, b});
  CHECK_THAT(c.refusal(), Contains("op 'a' comes before op 'b' on lane 'compute'") &&
                              Contains("stage 'my_policy': as it likes"));
}

TEST_CASE("edges that close a cycle across lanes are refused with lanes and edges") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a"), s = add(graph, "send", "s", {graph.out(a)});
  const OpId t = add(graph, "send", "t"), b = add(graph, "work", "b", {graph.out(t)});
  Case c(graph, default_schedule(graph));
  for (LaneOrders& rank : c.ranks) rank.lanes[0] = {b, a};  // b waits for t, which stands after s
  CHECK_THAT(c.refusal(), Contains("cycle") && Contains("'b'") && Contains("lane 'compute'") &&
                              Contains("lane 'comm'") && Contains("data, tensor 't'"));
  CHECK(s != b);
}

TEST_CASE("members that would meet in different collectives are refused with both ops") {
  Graph graph(fake::table());
  add(graph, "send", "s"), add(graph, "send", "t"), add(graph, "reduce", "u");
  Schedule schedule = default_schedule(graph);
  schedule.log.push_back({"t", "lina_priority", "first"});
  Case c(graph, schedule);
  std::swap(c.ranks[1].lanes[1][0], c.ranks[1].lanes[1][1]);
  CHECK_THAT(c.refusal(), Contains("number 1 is op 's' on rank 0 and op 't' on rank 1") &&
                              Contains("lane 'comm'") && Contains("'lina_priority'"));
}

TEST_CASE("ranks each in order but not together are refused") {
  // Rank 0 runs q, which t needs, only after s; rank 1 runs p, which s needs, only after t.
  Graph graph(fake::table());
  const OpId p = add(graph, "work", "p"), q = add(graph, "work", "q");
  const OpId s = add(graph, "send", "s", {graph.out(p)});
  const OpId t = add(graph, "reduce", "t", {graph.out(q)});
  const OpId after_s = add(graph, "work", "after_s", {graph.out(s)});
  const OpId after_t = add(graph, "work", "after_t", {graph.out(t)});
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  schedule.lane_of[t.index()] = LaneId(2);
  Case c(graph, schedule);
  for (size_t i = 0; i < c.memory.buffers.size(); ++i) {  // nothing shares storage
    c.memory.buffers[i] = {.offset = static_cast<Bytes>(i) * 64, .bytes = 64};
  }
  c.memory.arena_bytes = static_cast<Bytes>(c.memory.buffers.size()) * 64;
  c.ranks[0].lanes[0] = {p, after_s, q, after_t};
  c.ranks[1].lanes[0] = {p, q, after_s, after_t};
  CHECK(c.refusal() == "");
  c.ranks[1].lanes[0] = {q, after_t, p, after_s};
  CHECK_THAT(c.refusal(),
             Contains("ranks wait for each other") && Contains("never posted by all ranks"));
}

TEST_CASE("an op on a lane of the wrong kind is refused with op, lane and stage") {
  Graph graph(fake::table());
  const OpId s = add(graph, "send", "s");
  Case c(graph, default_schedule(graph));
  c.schedule.lane_of[s.index()] = LaneId(0);
  c.schedule.log.push_back({"s", "my_lanes", "why not"});
  CHECK_THAT(c.refusal(), Contains("op 's' is on lane 'compute'") && Contains("a comm lane") &&
                              Contains("'my_lanes'"));
}

TEST_CASE("an op that stands on another lane than the schedule says is refused") {
  Graph graph(fake::table());
  const OpId s = add(graph, "send", "s");
  Case c(graph, default_schedule(graph));
  c.ranks[0].lanes = {{s}, {}};
  CHECK_THAT(c.refusal(), Contains("'s'") && Contains("'comm'") && Contains("lane 'compute'"));
}

TEST_CASE("a buffer written while another op may still read it is refused with both ops") {
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Case c = random_case(seed);
    const auto after = fake::brute_force(c.graph, c.schedule, c.ranks[0]);
    // Some reader of a tensor is not ordered before the writer of another one: let them share.
    const std::vector<OpId> producer = c.graph.producers();
    int64_t here = 0;
    for (size_t i = 0; i < c.graph.num_ops() && here < 10; ++i) {
      for (const TensorId read : c.graph.ops()[i].inputs) {
        for (size_t t = 0; t < producer.size(); ++t) {
          if (!producer[t].valid() || c.memory.buffers[read.index()].persistent) continue;
          const size_t writer = producer[t].index(), maker = producer[read.index()].index();
          if (t == read.index() || writer == i || after[i][writer] || after[writer][maker])
            continue;
          Case spoilt = c;
          spoilt.memory.buffers[t].offset = spoilt.memory.buffers[read.index()].offset;
          spoilt.memory.arena_bytes += 1 << 20;  // so that only the sharing is wrong
          CHECK_THAT(spoilt.refusal(), Contains("writes tensor") && Contains("into the storage") &&
                                           Contains("stage 'memory'") && Contains("on lane"));
          ++here;
        }
      }
    }
    refused += here;
  }
  CHECK(refused > 100);
}

TEST_CASE("storage of the loss, of two outputs of one op, or beyond the arena is refused") {
  Graph graph(fake::table());
  const OpId loss = add(graph, "work", "loss", {}, "1");
  const OpId two = add(graph, "work", "two", {}, "16,16");
  Case good(graph, default_schedule(graph));
  CHECK(good.refusal() == "");
  const auto buffer = [&](Case& c, OpId op, size_t i) -> Buffer& {
    return c.memory.buffers[c.graph.out(op, i).index()];
  };
  Case c = good;
  buffer(c, two, 0).offset = buffer(c, loss, 0).offset;
  CHECK_THAT(c.refusal(), Contains("'two'") && Contains("'loss'") && Contains("returns"));
  c = good;
  buffer(c, two, 1).offset = buffer(c, two, 0).offset;
  CHECK_THAT(c.refusal(), Contains("'two:1'") && Contains("stage 'memory'"));
  c = good;
  c.memory.arena_bytes -= 1;
  CHECK_THAT(c.refusal(), Contains("but the arena has"));
}

TEST_CASE("an op may write over an input only where its kind allows it, and only in full") {
  for (const char* kind : {"map", "work"}) {
    Graph graph(fake::table());
    const OpId a = add(graph, "work", "a"), b = add(graph, kind, "b", {graph.out(a)});
    Case c(graph, default_schedule(graph));
    c.memory.buffers[graph.out(b).index()].offset = c.memory.buffers[graph.out(a).index()].offset;
    const bool allowed = std::string(kind) == "map";
    CHECK((c.refusal() == "") == allowed);
    if (!allowed) CHECK_THAT(c.refusal(), Contains("'b'") && Contains("itself still reads"));
    c.memory.arena_bytes = 1024;
    c.memory.buffers[graph.out(b).index()].offset += 32;
    CHECK_THAT(c.refusal(), Contains("itself still reads"));
  }
}

TEST_CASE("what is left of a tensor beside one that took a part of it is still its own") {
  // y takes the middle of x once the reader is done with x; z, unordered, takes one end of it.
  Graph graph(fake::table());
  const OpId x = add(graph, "work", "x", {}, "48");
  const OpId reader = add(graph, "send", "reader", {graph.out(x)});
  const OpId y = add(graph, "work", "y"), z = add(graph, "reduce", "z");
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  schedule.lane_of[z.index()] = LaneId(2);
  schedule.before(reader, y, "test", "x is free");
  Case c(graph, schedule);
  const auto put = [&](OpId op, Bytes offset) {
    c.memory.buffers[graph.out(op).index()].offset = offset;
  };
  c.memory.arena_bytes = 4096;
  put(x, 0), put(y, 64), put(reader, 1024), put(z, 2048);
  CHECK(c.refusal() == "");
  for (const Bytes end : {0, 128}) {
    put(z, end);
    CHECK_THAT(c.refusal(), Contains("writes tensor 'z'") && Contains("'x'"));
  }
}

TEST_CASE("persistent tensors that overlap are refused") {
  Graph graph(fake::table());
  const TensorId w = graph.add_tensor({.name = "w", .shape = {17}, .kind = TensorKind::kParam});
  const TensorId v = graph.add_tensor({.name = "v", .shape = {17}, .kind = TensorKind::kState});
  add(graph, "work", "a", {w, v});
  Case c(graph, default_schedule(graph));
  c.memory.buffers[v.index()].offset = 64;
  CHECK_THAT(c.refusal(), Contains("persistent tensor 'v'"));
}

/// gate -> rows and counts, rows sent irregularly, transformed, and sent back.
Graph routed_graph(bool counts, bool own_routing) {
  Graph graph(fake::table());
  const auto gate = [&](const std::string& name) {
    return graph.add_op("work", name, {}, {{"sizes", "16,4"}, {"i32", int64_t{1}}});
  };
  const OpId mine = gate("gate"), other = gate("other_gate");
  const OpId rows = add(graph, "work", "dispatch", {graph.out(mine, 0)});
  const OpId x = add(graph, "work", "x", {graph.out(rows), graph.out(mine, 0)});
  std::vector<TensorId> inputs{graph.out(x)};
  if (counts) inputs.push_back(graph.out(own_routing ? mine : other, 1));
  const OpId send =
      graph.add_op("send", "a2a", inputs, {{"sizes", "16"}, {"irregular", int64_t{1}}});
  const OpId expert = add(graph, "work", "expert", {graph.out(send)});
  inputs[0] = graph.out(expert);
  graph.add_op("send", "a2a_back", inputs, {{"sizes", "16"}, {"irregular", int64_t{1}}});
  return graph;
}

TEST_CASE("an irregular collective needs counts, and those of the routing that laid out its rows") {
  const auto refusal = [](bool counts, bool own) {
    const Graph graph = routed_graph(counts, own);
    return Case(graph, default_schedule(graph)).refusal();
  };
  CHECK(refusal(true, true) == "");
  CHECK_THAT(refusal(false, true),
             Contains("'a2a' on lane 'comm' is irregular, so it must have an input of counts"));
  CHECK_THAT(refusal(true, false),
             Contains("'a2a'") && Contains("'other_gate'") && Contains("'gate'"));
}

/// first -> low (reduce) -> second -> high (send); "late" computes beside them.
struct HoldCase {
  Graph graph{fake::table()};
  OpId first = add(graph, "work", "first");
  OpId low = add(graph, "reduce", "low", {graph.out(first)});
  OpId second = add(graph, "work", "second", {graph.out(low)});
  OpId high = add(graph, "send", "high", {graph.out(second)});
  OpId late = add(graph, "work", "late");
  Schedule schedule = default_schedule(graph);

  std::string refusal(OpId from, OpId until) {
    schedule.lanes[1].pick = Pick::kPriority;
    schedule.set_priority(high, 1);
    schedule.holds = {{from, until, "lina"}};
    return Case(graph, schedule).refusal();
  }
};

TEST_CASE("a hold that holds back what it waits for is refused with both ops and the stage") {
  HoldCase c;
  CHECK(c.refusal(c.second, c.high).empty());
  const std::string text = c.refusal(c.first, c.high);
  CHECK_THAT(text, Contains("'first' to 'high' (stage 'lina')"));
  CHECK_THAT(text, Contains("hold back op 'low' of priority 0, for which 'high' waits"));
  CHECK_THAT(c.refusal(c.late, c.high), Contains("hold back op 'low'"));
}

TEST_CASE("a hold leads from a compute op to a later op of a lane that picks") {
  HoldCase c;
  CHECK_THAT(c.refusal(c.low, c.high), Contains("from a compute op to an op on a lane that picks"));
  CHECK_THAT(c.refusal(c.first, c.second), Contains("from a compute op"));
  c.schedule.before(c.late, c.second, "test", "");
  CHECK(c.refusal(c.second, c.high).empty());
  HoldCase other;
  other.schedule.set_priority(other.low, 1);
  CHECK_THAT(other.refusal(other.late, other.high), Contains("the first op must come before"));
}

TEST_CASE("compute lanes do not pick, and a lane has one arbiter") {
  HoldCase c;
  c.schedule.lanes[0].pick = Pick::kPriority;
  CHECK_THAT(Case(c.graph, c.schedule).refusal(), Contains("lane 'compute' is a compute lane"));
  HoldCase d;
  d.schedule.exclusive = {{{LaneId(1)}, "one"}, {{LaneId(1)}, "two"}};
  CHECK_THAT(Case(d.graph, d.schedule).refusal(), Contains("lane 'comm' is in two groups"));
}

}  // namespace
}  // namespace moe
