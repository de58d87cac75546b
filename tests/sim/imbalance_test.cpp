#include <catch2/catch.hpp>
#include <map>

#include "engine/network/closed_form.h"
#include "tests/model/gpt2.h"
#include "tests/sim/routing.h"
#include "tests/timeline/same_spans.h"

namespace moe {
namespace {

using test::counted;
using test::flat_cluster;
using test::ops_of;
using test::random_loads;
using test::routed_spec;
using test::same_spans;
using test::simulate_routing;
using test::stage;

ExpertCounts even(const RoutingQuery& q, int64_t rows) {
  ExpertCounts loads(q.ranks, q.experts);
  std::fill(loads.rows.begin(), loads.rows.end(), rows);
  return loads;
}

/// Every choice is expert 0's as far as rank 0 has places; the rest is even.
ExpertCounts hot(const RoutingQuery& q) {
  ExpertCounts loads = even(q, 4);
  for (int64_t s = 0; s < q.ranks; ++s) loads.at(s, 0) = 20;
  return loads;
}

std::map<std::pair<size_t, int32_t>, Span> by_op(const Timeline& timeline) {
  std::map<std::pair<size_t, int32_t>, Span> spans;
  for (const Span& span : timeline.spans) spans[{span.op.index(), span.rank}] = span;
  return spans;
}

TEST_CASE("balanced routing takes to the nanosecond what the plan expects with the same fill") {
  const std::vector<std::vector<Stage>> systems = {
      {},
      counted(),
      counted({stage("dw_schedule")}),
      counted({stage("partition", {{"parts", 2.0}, {"before", 0.0}, {"after", 0.0}})})};
  for (const std::vector<Stage>& stages : systems) {
    PlanSpec spec = routed_spec(stages, 4, flat_cluster(4));  // 8 of 10 places
    spec.system.sync.lane = ReduceLane::kOwn;                 // transfers meet
    const RunResult plain = make_simulator()->run(*make_plan(spec), {});
    const RunResult routed =
        simulate_routing(spec, [](const RoutingQuery& q) { return even(q, 8); });
    CHECK(routed.timelines[0].num_ranks == 1);
    CHECK(same_spans(routed.timelines[0], plain.timelines[0]));
  }
}

TEST_CASE("two ranks and one layer come out as computed by hand") {
  PlanSpec spec = routed_spec(counted(), 2, flat_cluster(2));
  spec.routing = test::routing_of([](const RoutingQuery& q) {
    ExpertCounts loads(q.ranks, q.experts);
    loads.rows = {10, 12, 3, 7, 0, 10, 9, 1};  // two experts per rank; 12 are cut to 10
    return loads;
  });
  const auto plan = make_plan(spec);
  const Graph& g = plan->graph;
  const Timeline timeline = make_simulator()->run(*plan, {}).timelines[0];
  const auto spans = by_op(timeline);
  REQUIRE(timeline.num_ranks == 2);
  const auto lasts = [&](const char* name, int32_t rank) {
    const Span& span = spans.at({g.find_op(name).index(), rank});
    return span.end - span.begin;
  };
  // Rank 0 gets 20 of its own and 10 of rank 1's rows, rank 1 10 and 10; fc1: [rows, 16] x [16, 64]
  // at 1 flop a ns, and 100 ns to launch.
  CHECK(lasts("b1.moe.fc1", 0) == 2 * 30 * 16 * 64 + 100);
  CHECK(lasts("b1.moe.fc1", 1) == 2 * 20 * 16 * 64 + 100);
  // Slots [4,10,16] f32 written, rows read, slot_choice [4,10] read, at 1 byte a ns.
  CHECK(lasts("b1.moe.dispatch", 0) == 2560 + 30 * 64 + 160 + 100);
  CHECK(lasts("b1.moe.dispatch", 1) == 2560 + 20 * 64 + 160 + 100);
  // 10 rows of 64 bytes each way, at 0.1 byte a ns, and both latencies.
  CHECK(lasts("b1.moe.a2a_1", 0) == 6400 + 1000);
  CHECK(lasts("b1.moe.a2a_2", 1) == 6400 + 1000);
  CHECK(spans.at({g.find_op("b1.moe.a2a_1").index(), 0}).bytes == 640);
  // All begin with the slower rank and end alike; the faster one waits meanwhile.
  const Span& fast = spans.at({g.find_op("b1.moe.a2a_2").index(), 1});
  const Span& slow = spans.at({g.find_op("b1.moe.a2a_2").index(), 0});
  CHECK(slow.begin == slow.post);
  CHECK(fast.begin == slow.begin);
  CHECK(fast.end == slow.end);
  CHECK(fast.begin - fast.post >= 2 * 10 * 16 * 64);
}

TEST_CASE("a hot expert keeps its rank busy and the others waiting, apart from transfers") {
  const PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
  const Metrics even_one =
      simulate_routing(spec, [](const RoutingQuery& q) { return even(q, 5); }).metrics[0];
  const RunResult result = simulate_routing(spec, hot);
  const Metrics& m = result.metrics[0];
  CHECK(result.timelines[0].num_ranks == 4);
  CHECK(even_one.imbalance() == 1);
  CHECK(even_one.wait_ns == 0);
  CHECK(m.imbalance() > 1);
  CHECK(m.expert_imbalance() > m.imbalance());
  CHECK(m.expert_imbalance() < 10.0 / ((10 + 3 * 4) / 4.0) + 1e-9);
  CHECK(m.makespan_ns > even_one.makespan_ns);
  CHECK(m.wait_ns > 0);
  std::vector<Nanoseconds> waits(4), busy(4);
  for (const Span& span : result.timelines[0].spans) {
    const auto r = static_cast<size_t>(span.rank);
    waits[r] += span.begin - span.post;
    busy[r] += span.lane == LaneId(0) ? span.end - span.begin : 0;
  }
  for (size_t r = 1; r < 4; ++r) {
    CHECK(busy[r] < busy[0]);
    CHECK(waits[r] > waits[0]);
  }
}

TEST_CASE("the wire's time of a hot expert is that of its rank's link") {
  const PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
  const Timeline timeline = simulate_routing(spec, hot).timelines[0];
  const auto plan = make_plan(spec);
  const OpId there = plan->graph.find_op("b1.moe.a2a_1");
  for (const Span& span : timeline.spans) {
    if (span.op != there) continue;
    CHECK(span.end - span.begin == 3 * 10 * 64 * 10 + 1000);  // 3 ranks' 10 rows into rank 0
    CHECK(span.bytes == (span.rank == 0 ? 3 * 4 * 64 : (10 + 2 * 4) * 64));
  }
}

TEST_CASE("permuted ranks have permuted timelines") {
  const std::vector<int64_t> to = {2, 0, 3, 1};
  for (const bool own_lane : {false, true}) {
    PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
    spec.system.sync.lane = own_lane ? ReduceLane::kOwn : ReduceLane::kWithAllToAlls;
    const Timeline a = simulate_routing(spec, [](const RoutingQuery& q) {
                         return random_loads(q, 1);
                       }).timelines[0];
    Timeline b = simulate_routing(spec, [&](const RoutingQuery& q) {
                   const ExpertCounts given = random_loads(q, 1);
                   ExpertCounts moved(q.ranks, q.experts);
                   for (int64_t s = 0; s < 4; ++s) {
                     for (int64_t e = 0; e < 4; ++e) {  // expert e is rank e's
                       moved.at(to[static_cast<size_t>(s)], to[static_cast<size_t>(e)]) =
                           given.at(s, e);
                     }
                   }
                   return moved;
                 }).timelines[0];
    const auto first = by_op(a), second = by_op(b);
    REQUIRE(a.num_ranks == 4);
    REQUIRE(first.size() == second.size());
    for (const auto& [op_rank, span] : first) {
      const auto rank = static_cast<int32_t>(to[static_cast<size_t>(op_rank.second)]);
      const Span& other = second.at({op_rank.first, rank});
      // Where transfers meet, shares are summed in another order.
      const Nanoseconds slack = own_lane ? 50 : 0;
      CHECK(std::abs(other.post - span.post) <= slack);
      CHECK(std::abs(other.begin - span.begin) <= slack);
      CHECK(std::abs(other.end - span.end) <= slack);
      CHECK(other.bytes == span.bytes);
    }
  }
}

TEST_CASE("every step has its own timeline, from the first step asked for") {
  const PlanSpec spec = routed_spec(counted(), 2, flat_cluster(2));
  const auto loads = [](const RoutingQuery& q) {
    ExpertCounts made = random_loads(q, 3);
    if (q.step % 4 >= 2) made = even(q, 8);
    return made;
  };
  const RunResult all = simulate_routing(spec, loads, 6);
  REQUIRE(all.timelines.size() == 6);
  REQUIRE(all.metrics.size() == 6);
  for (size_t step = 0; step < 6; ++step) {
    const RunResult one = simulate_routing(spec, loads, 1, static_cast<int64_t>(step));
    CHECK(same_spans(one.timelines[0], all.timelines[step]));
    CHECK(all.timelines[step].num_ranks == (step % 4 >= 2 ? 1 : 2));
  }
  CHECK(same_spans(all.timelines[2], all.timelines[3]));
  CHECK_FALSE(same_spans(all.timelines[0], all.timelines[1]));
}

TEST_CASE("a chunked irregular all-to-all moves its matrix in equal parts") {
  PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
  spec.routing = test::routing_of(hot);
  const auto whole = make_plan(spec);
  const OpId there = whole->graph.find_op("b1.moe.a2a_1");
  Schedule schedule = whole->schedule;
  schedule.set_chunk(whole->graph, there, (message_bytes(whole->graph, there) + 1) / 2, "test");
  const auto cut = make_plan_of(spec, whole->graph, schedule);
  std::vector<Span> chunks;
  const RunResult result = make_simulator()->run(*cut, {});
  for (const Span& span : result.timelines[0].spans) {
    if (span.op == there && span.rank == 1) chunks.push_back(span);
  }
  REQUIRE(chunks.size() == 2);
  for (const Span& chunk : chunks) {
    CHECK(chunk.end - chunk.begin == 3 * 10 * 64 * 10 / 2 + 1000);
    CHECK(chunk.bytes == (10 + 2 * 4) * 64 / 2);
  }
}

TEST_CASE("a plan without MoE layers goes as without a routing model") {
  PlanSpec spec = routed_spec({}, 2, flat_cluster(2));
  test::change_model(spec, [&](test::Gpt2& m) { m.moe_every = 5; });
  const RunResult plain = make_simulator()->run(*make_plan(spec), {});
  const RunResult routed = simulate_routing(spec, hot);
  CHECK(same_spans(plain.timelines[0], routed.timelines[0]));
}

TEST_CASE("the step that is asked for says what links carry; no time depends on it") {
  PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
  spec.system.sync.lane = ReduceLane::kOwn;
  spec.routing =
      test::routing_of([](const RoutingQuery& q) { return random_loads(q, q.step < 2 ? 1 : 2); });
  const auto plan = make_plan(spec);
  RunOptions options;
  options.steps = 4;
  const RunResult plain = make_simulator()->run(*plan, options);
  options.links_of_step = 2;
  const RunResult with = make_simulator()->run(*plan, options);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(plain.timelines[i].links.empty());
    CHECK(with.timelines[i].links.empty() == (i != 2));
    CHECK(with.metrics[i].makespan_ns == plain.metrics[i].makespan_ns);
    const auto& a = with.timelines[i].spans;
    const auto& b = plain.timelines[i].spans;
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Span& x, const Span& y) {
      return x.op == y.op && x.rank == y.rank && x.begin == y.begin && x.end == y.end;
    }));
  }
}

TEST_CASE("a step that goes as the one before says what links carry where it is asked to") {
  PlanSpec spec = routed_spec(counted(), 4, flat_cluster(4));
  spec.routing = test::routing_of([](const RoutingQuery& q) {
    RoutingQuery first = q;
    first.step = 0;
    return random_loads(first, 1);
  });
  RunOptions options;
  options.steps = 3;
  options.links_of_step = 2;
  const RunResult result = make_simulator()->run(*make_plan(spec), options);
  CHECK(result.timelines[1].links.empty());
  CHECK_FALSE(result.timelines[2].links.empty());
  CHECK(result.metrics[2].makespan_ns == result.metrics[1].makespan_ns);

  spec.routing = nullptr;  // one step stands for all
  const RunResult one = make_simulator()->run(*make_plan(spec), options);
  REQUIRE(one.timelines.size() == 1);
  CHECK_FALSE(one.timelines[0].links.empty());
}

}  // namespace
}  // namespace moe
