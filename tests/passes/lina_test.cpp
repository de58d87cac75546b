// Lina's schedulers on plans of a small model.
#include <catch2/catch.hpp>
#include <set>

#include "engine/base/errors.h"
#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

/// A gradient an all-reduce, on a lane of their own.
PlanSpec two_lanes(std::vector<Stage> stages) {
  PlanSpec spec = small_spec(std::move(stages));
  spec.system.sync.lane = ReduceLane::kOwn;
  return spec;
}

/// Compute 10 ns, transfers as given.
std::shared_ptr<const CostModel> transfers(Nanoseconds a2a, Nanoseconds reduce) {
  return std::make_shared<GivenCost>([=](const Graph& graph, OpId op) -> Nanoseconds {
    if (graph.def(op).collective == Collective::kAllToAll) return a2a;
    return graph.def(op).collective == Collective::kAllReduce ? reduce : 10;
  });
}

std::vector<Span> spans_of(const Plan& plan, const Timeline& timeline, Collective collective) {
  std::vector<Span> found;
  for (const Span& span : timeline.spans) {
    if (plan.graph.def(span.op).collective == collective) found.push_back(span);
  }
  return found;
}

bool overlap(const Span& a, const Span& b) {
  return a.begin < b.end && b.begin < a.end;
}

TEST_CASE("chunked cuts the transfers that are longer than a chunk, and those of its kind only") {
  for (const std::string which : {"all_reduce", "all_to_all", "both"}) {
    const auto plan =
        make_plan(two_lanes({stage("chunked", {{"bytes", 500.0}, {"which", which}})}));
    int64_t cut = 0, whole = 0;
    for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
      const OpId op(static_cast<int64_t>(i));
      const Collective collective = plan->graph.def(op).collective;
      const bool reduces = collective == Collective::kAllReduce;
      if (collective == Collective::kNone) continue;
      const int64_t wanted = (message_bytes(plan->graph, op) + 499) / 500;
      const bool of_kind = which == "both" || (which == "all_reduce") == reduces;
      CHECK(num_chunks(plan->graph, plan->schedule, op) == (of_kind ? wanted : 1));
      (of_kind && wanted > 1 ? cut : whole) += 1;
    }
    CHECK(cut > 0);
    CHECK(whole > 0);
    CHECK(plan->stages[0].changed);
  }
  CHECK_FALSE(make_plan(two_lanes({stage("chunked")}))->stages[0].changed);
  CHECK_THAT(message_of<UserError>([] {
               make_plan(two_lanes(
                   {stage("chunked", {{"bytes", 500.0}}), stage("chunked", {{"bytes", 100.0}})}));
             }),
             Contains("is already cut into chunks of 500 bytes") && Contains("'chunked'"));
}

TEST_CASE("with priority no two transfers overlap, and no all-reduce passes a posted all-to-all") {
  for (const bool own_lane : {true, false}) {
    for (const Nanoseconds reduce : {1, 7, 35, 400}) {
      PlanSpec spec = two_lanes({stage("priority"), stage("chunked", {{"bytes", 256.0}})});
      spec.system.sync.lane = own_lane ? ReduceLane::kOwn : ReduceLane::kWithAllToAlls;
      spec.cost = transfers(50, reduce);
      const auto plan = make_plan(std::move(spec));
      const Timeline timeline = simulate(*plan);
      const std::vector<Span> a2a = spans_of(*plan, timeline, Collective::kAllToAll);
      const std::vector<Span> reduces = spans_of(*plan, timeline, Collective::kAllReduce);
      REQUIRE(a2a.size() == 8);
      for (const Span& r : reduces) {
        for (const Span& a : a2a) {
          CHECK_FALSE(overlap(a, r));
          CHECK_FALSE((r.begin > a.post && r.begin < a.begin));
        }
      }
    }
  }
}

TEST_CASE("an all-to-all waits for one chunk of an all-reduce at most, whole for a whole one") {
  const auto longest_wait = [](std::vector<Stage> stages) {
    PlanSpec spec = two_lanes(std::move(stages));
    spec.cost = transfers(50, 1000);
    const auto plan = make_plan(std::move(spec));
    Nanoseconds longest = 0;
    for (const Span& a : spans_of(*plan, simulate(*plan), Collective::kAllToAll)) {
      longest = std::max(longest, a.begin - a.post);
    }
    return longest;
  };
  const Options no_hold = {{"hold", false}};
  // The largest gradient before the last all-to-all, [64,16] floats, makes 8 chunks of 512 bytes.
  const Nanoseconds cut =
      longest_wait({stage("priority", no_hold), stage("chunked", {{"bytes", 512.0}})});
  CHECK(cut > 0);
  CHECK(cut <= 1000);
  CHECK(longest_wait({stage("priority", no_hold)}) > 500);
}

TEST_CASE("a hold goes from the gradient of each combine to the all-to-all behind it") {
  for (const double bytes : {1e9, 2560.0, 700.0}) {
    const auto plan = make_plan(
        two_lanes({stage("micro_ops", {{"bytes", bytes}}), stage("priority"), stage("chunked")}));
    const std::vector<OpId> producers = plan->graph.producers();
    std::set<OpId> announced, from;
    for (const Hold& hold : plan->schedule.holds) {
      CHECK(kind(plan->graph, hold.from) == "combine_dx");
      CHECK(plan->graph.op(hold.until).phase == Phase::kBackward);
      CHECK(plan->graph.op(hold.until).layer == plan->graph.op(hold.from).layer);
      from.insert(hold.from);
      announced.insert(hold.until);
    }
    CHECK(from.size() == 2);  // MoE layers
    CHECK(announced.size() == ops_of(plan->graph, "all_to_all").size() / 4);
    const auto free = make_plan(two_lanes({stage("priority", {{"hold", false}})}));
    CHECK(free->schedule.holds.empty());
  }
}

/// All-reduces that begin while a hold of `plan` says that an all-to-all is coming, in the timeline
/// of `run`, which has the same graph.
int64_t begun_while_announced(const Plan& plan, const Plan& run) {
  const Timeline timeline = simulate(run);
  const auto span_of = [&](OpId op) {
    return *std::find_if(timeline.spans.begin(), timeline.spans.end(),
                         [op](const Span& span) { return span.op == op; });
  };
  int64_t count = 0;
  for (const Hold& hold : plan.schedule.holds) {
    const Nanoseconds begin = span_of(hold.from).begin, end = span_of(hold.until).post;
    for (const Span& r : spans_of(run, timeline, Collective::kAllReduce)) {
      count += r.begin > begin && r.begin < end ? 1 : 0;
    }
  }
  return count;
}

TEST_CASE("a hold keeps all-reduces from beginning between the combine and its all-to-all") {
  int64_t without = 0;
  for (Nanoseconds reduce = 1; reduce < 60; reduce += 3) {
    const auto plan_with = [reduce](bool hold) {
      PlanSpec spec = two_lanes({stage("priority", {{"hold", hold}})});
      spec.cost = transfers(50, reduce);
      return make_plan(std::move(spec));
    };
    const auto held = plan_with(true), free = plan_with(false);
    CHECK(begun_while_announced(*held, *held) == 0);
    without += begun_while_announced(*held, *free);
  }
  CHECK(without > 0);
}

TEST_CASE("fixed runs all-reduces between the pairs of all-to-alls of the backward only") {
  PlanSpec spec = two_lanes({stage("fixed")});
  spec.cost = transfers(50, 30);
  const auto plan = make_plan(std::move(spec));
  const Timeline timeline = simulate(*plan);
  std::map<int32_t, std::pair<Nanoseconds, Nanoseconds>> pairs;  // by layer
  for (const Span& a : spans_of(*plan, timeline, Collective::kAllToAll)) {
    const Op& op = plan->graph.op(a.op);
    if (op.phase != Phase::kBackward) continue;
    const auto [at, is_new] = pairs.try_emplace(op.layer, a.begin, a.end);
    at->second.first = std::min(at->second.first, a.begin);
    at->second.second = std::max(at->second.second, a.end);
  }
  REQUIRE(pairs.size() == 2);
  for (const Span& r : spans_of(*plan, timeline, Collective::kAllReduce)) {
    for (const auto& [layer, pair] : pairs) {
      CHECK((r.end <= pair.first || r.begin >= pair.second));
    }
  }
}

TEST_CASE("micro_ops cuts each layer so that no part exchanges more than the bytes") {
  for (const double bytes : {3000.0, 1024.0, 300.0, 1.0}) {
    const auto plan = make_plan(small_spec({stage("micro_ops", {{"bytes", bytes}})}));
    // [4,10,16] floats: 10 slots of 256 bytes.
    const size_t parts = bytes >= 2560 ? 1 : bytes >= 1024 ? 3 : 10;
    CHECK(ops_of(plan->graph, "all_to_all").size() == parts * 8);
    for (const OpId op : ops_of(plan->graph, "all_to_all")) {
      CHECK(static_cast<double>(message_bytes(plan->graph, op)) <= std::max(bytes, 256.0));
    }
    CHECK(plan->stages.front().changed == (parts > 1));
  }
}

TEST_CASE("with micro-ops, an expert computes a part while the next is on the wire") {
  const auto time = [](double bytes) {
    PlanSpec spec = two_lanes({stage("micro_ops", {{"bytes", bytes}}), stage("priority")});
    spec.cost = std::make_shared<GivenCost>([](const Graph& graph, OpId op) -> Nanoseconds {
      if (graph.op(op).segment == Segment::kExpert) return graph.bytes(graph.op(op).inputs[0]);
      const bool a2a = graph.def(op).collective == Collective::kAllToAll;
      return a2a ? 3 * message_bytes(graph, op) : 1;
    });
    return makespan(*make_plan(std::move(spec)));
  };
  CHECK(time(1024) < time(1e9));
}

TEST_CASE("a lane has one discipline, and both stages are named") {
  const std::string message = message_of<UserError>([] {
    make_plan(two_lanes({stage("priority"), stage("priority")}));
  });
  CHECK_THAT(message, Contains("lane 'comm' already has a discipline") && Contains("'priority'"));
}

TEST_CASE("one rank has nothing to order") {
  const auto plan = make_plan(small_spec({stage("fixed"), stage("priority"), stage("chunked")}, 1));
  for (size_t i = 0; i < 3; ++i) CHECK_FALSE(plan->stages[i].changed);
}

}  // namespace
}  // namespace moe::test
