#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/schedule/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using fake::add;
using fake::message_of;

TEST_CASE("by default compute ops and collectives have a lane each and keep the program order") {
  const Graph graph = fake::random_graph(1, 60);
  const LaneOrders orders = lane_orders(graph, default_schedule(graph));
  REQUIRE(orders.lanes.size() == 2);
  for (size_t l = 0; l < 2; ++l) {
    CHECK(std::is_sorted(orders.lanes[l].begin(), orders.lanes[l].end()));
    CHECK(!orders.lanes[l].empty());
    for (const OpId op : orders.lanes[l]) {
      CHECK((graph.def(op).lane == LaneKind::kComm) == (l == 1));
    }
  }
}

TEST_CASE("lane orders hold every op once and no edge points backwards") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Graph graph = fake::random_graph(seed, 80);
    const Schedule schedule = fake::random_schedule(graph, seed, 12);
    const LaneOrders orders = lane_orders(graph, schedule);
    std::vector<int> times(graph.num_ops());
    for (size_t l = 0; l < orders.lanes.size(); ++l) {
      for (const OpId op : orders.lanes[l]) {
        ++times[op.index()];
        CHECK(schedule.lane_of[op.index()].index() == l);
      }
    }
    CHECK(times == std::vector<int>(graph.num_ops(), 1));
    // An edge against the orders would make an op come after itself.
    const auto after = fake::brute_force(graph, schedule, orders);
    for (size_t i = 0; i < after.size(); ++i) CHECK(!after[i][i]);
  }
}

TEST_CASE("where edges leave a choice the op that stands first in the program runs first") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a"), b = add(graph, "work", "b");
  const OpId c = add(graph, "work", "c"), d = add(graph, "work", "d", {graph.out(a)});
  Schedule schedule = default_schedule(graph);
  schedule.before(c, a, "test", "c first");
  CHECK(lane_orders(graph, schedule).lanes[0] == std::vector<OpId>{b, c, a, d});
}

TEST_CASE("a cycle error names the ops, the tensor, and the stage and reason of every order edge") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "first"), b = add(graph, "map", "second", {graph.out(a)});
  const OpId c = add(graph, "send", "third"), d = add(graph, "work", "bystander", {graph.out(b)});
  Schedule schedule = default_schedule(graph);
  schedule.before(b, c, "dw_schedule", "hides");
  schedule.before(c, a, "my_policy", "wants it early");
  schedule.before(c, d, "innocent", "is no part of it");
  const std::string message = message_of<RunError>([&] { lane_orders(graph, schedule); });
  for (const char* part : {"'first'", "'second'", "'third'", "stage 'dw_schedule': hides",
                           "stage 'my_policy': wants it early", "data, tensor 'first'", "3 ops"}) {
    CHECK_THAT(message, Contains(part));
  }
  CHECK_THAT(message, !Contains("innocent") && !Contains("bystander"));
}

TEST_CASE("an order edge to an op that does not exist is refused with its stage") {
  Graph graph(fake::table());
  const OpId a = add(graph, "work", "a");
  Schedule schedule = default_schedule(graph);
  schedule.before(a, OpId(7), "lost", "why");
  CHECK_THAT(message_of<RunError>([&] { lane_orders(graph, schedule); }), Contains("'lost'"));
}

TEST_CASE("an unknown lane is an error that lists the lanes") {
  Graph graph(fake::table());
  CHECK_THAT(message_of<UserError>([&] { default_schedule(graph).lane("com"); }),
             Contains("compute") && Contains("'comm'"));
  CHECK(default_schedule(graph).lane("comm") == LaneId(1));
}

TEST_CASE("happens-before is the transitive closure of edges and lane orders") {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    const Graph graph = fake::random_graph(seed, 70);
    const Schedule schedule = fake::random_schedule(graph, seed, 8);
    const LaneOrders orders = lane_orders(graph, schedule);
    const HappensBefore hb(graph, schedule, orders);
    const auto after = fake::brute_force(graph, schedule, orders);
    int64_t different = 0;
    for (size_t a = 0; a < graph.num_ops(); ++a) {
      for (size_t b = 0; b < graph.num_ops(); ++b) {
        different += hb.before(fake::id(a), fake::id(b)) != after[a][b];
      }
    }
    CHECK(different == 0);
  }
}

TEST_CASE("an op that overwrites a tensor happens after every reader of it") {
  Graph graph(fake::table());
  const TensorId w = graph.add_tensor({.name = "w", .shape = {4}, .kind = TensorKind::kParam});
  const OpId update = add(graph, "update", "update", {w});
  const OpId reader = add(graph, "send", "reader", {w});
  const Schedule schedule = default_schedule(graph);
  const HappensBefore hb(graph, schedule, lane_orders(graph, schedule));
  CHECK(hb.before(reader, update));
  CHECK(!hb.before(update, reader));
}

TEST_CASE("waits across lanes give the same happens-before, and none of them can be left out") {
  for (uint64_t seed = 200; seed < 215; ++seed) {
    const Graph graph = fake::random_graph(seed, 60);
    const Schedule schedule = fake::random_schedule(graph, seed, 8);
    const LaneOrders orders = lane_orders(graph, schedule);
    const auto waits = cross_lane_waits(graph, schedule, orders);
    // Waits alone, as order edges over ops that share no tensors.
    Graph bare(fake::table());
    for (const Op& op : graph.ops()) add(bare, "work", op.name);
    Schedule only_waits{.lanes = schedule.lanes, .lane_of = schedule.lane_of};
    for (size_t op = 0; op < waits.size(); ++op) {
      for (const OpId w : waits[op]) {
        const LaneId lane = schedule.lane_of[op];
        CHECK((schedule.lane_of[w.index()] != lane || schedule.picks(lane)));
        only_waits.before(w, fake::id(op), "waits", "");
      }
    }
    const auto expected = fake::brute_force(graph, schedule, orders);
    CHECK(fake::brute_force(bare, only_waits, orders) == expected);
    for (size_t e = 0; e < only_waits.order_edges.size(); ++e) {
      Schedule fewer = only_waits;
      fewer.order_edges.erase(fewer.order_edges.begin() + static_cast<std::ptrdiff_t>(e));
      CHECK(fake::brute_force(bare, fewer, orders) != expected);
    }
  }
}

TEST_CASE("a chunk is at least a byte and at most the message, and an op is cut once") {
  Graph graph(fake::table());
  const OpId work = add(graph, "work", "work");
  const OpId send = add(graph, "send", "send", {graph.out(work)});
  const OpId reduce = add(graph, "reduce", "reduce", {graph.out(work), graph.out(send)}, "16,16");
  Schedule schedule = default_schedule(graph);
  const auto refusal = [&](OpId op, Bytes bytes) {
    return message_of<UserError>([&] { schedule.set_chunk(graph, op, bytes); });
  };
  CHECK_THAT(refusal(send, 0), Contains("'send': chunks of 0 bytes") && Contains("1 to 64"));
  CHECK_THAT(refusal(send, 65), Contains("65 bytes"));
  CHECK_THAT(refusal(work, 4), Contains("'work' is a work; only transfers"));
  CHECK(num_chunks(graph, schedule, send) == 1);
  CHECK(refusal(send, 24).empty());
  CHECK(refusal(reduce, 128).empty());
  CHECK(num_chunks(graph, schedule, send) == 3);
  CHECK(num_chunks(graph, schedule, reduce) == 1);
  CHECK_THAT(refusal(send, 24), Contains("already cut into chunks of 24 bytes"));
  const OpId many = add(graph, "work", "many", {}, "262145");
  const OpId large = add(graph, "reduce", "large", {graph.out(many)}, "262145");
  CHECK_THAT(refusal(large, 1), Contains("more than 1048576 chunks"));
}

TEST_CASE(
    "exclusive lanes have one arbiter, a lane that picks has its own, one in order has none") {
  const Graph graph = fake::random_graph(3, 20);
  Schedule schedule = default_schedule(graph);
  for (const char* name : {"a", "b", "c"}) schedule.lanes.push_back({name, LaneKind::kComm});
  CHECK(arbiters(schedule).empty());
  schedule.lanes[2].pick = Pick::kPriority;
  schedule.exclusive.push_back({{LaneId(4), LaneId(1)}, "test"});
  CHECK(arbiters(schedule) == std::vector<Arbiter>{{LaneId(1), LaneId(4)}, {LaneId(2)}});
}

}  // namespace
}  // namespace moe
