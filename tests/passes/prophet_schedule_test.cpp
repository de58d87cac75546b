// Pro-Prophet's scheduler on plans of a small model: where planners and copies of experts stand.
#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/ops/placed.h"
#include "engine/passes/placement/place_experts.h"
#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

Options split() {
  return {{"split", true}, {"shadows", 3.0}, {"expected_copies", 2.0}};
}

/// Compute 100 ns, rows 50 and experts 60 ns on the wire; one link, so that a planner's rates
/// follow: 50 ns are an even all-to-all.
PlanSpec timed(std::vector<Stage> stages, Nanoseconds experts = 60, Nanoseconds compute = 100) {
  PlanSpec spec = small_spec(std::move(stages));
  spec.cost = std::make_shared<GivenCost>([=](const Graph& graph, OpId op) -> Nanoseconds {
    const Collective collective = graph.def(op).collective;
    if (collective == Collective::kExperts) return experts;
    if (collective == Collective::kAllToAll) return 50;
    if (is_view(graph, graph.op(op))) return 0;
    return kind(graph, op) == "place" ? 30 : compute;
  });
  return spec;
}

std::vector<OpId> all_to_alls(const Graph& graph) {
  return ops_of(graph, "all_to_all");
}

std::vector<OpId> movements(const Graph& graph) {
  std::vector<OpId> ops = ops_of(graph, "copy_experts");
  for (const OpId op : ops_of(graph, "return_gradients")) ops.push_back(op);
  return ops;
}

OpId found(const Graph& graph, const std::string& name) {
  const OpId op = graph.find_op(name);
  INFO(name);
  REQUIRE(op.valid());
  return op;
}

std::map<OpId, Span> spans(const Plan& plan) {
  std::map<OpId, Span> by_op;
  for (const Span& span : simulate(plan).spans) by_op[span.op] = span;
  return by_op;
}

TEST_CASE("the compute between layers hides T / tau of experts, in sixteenths") {
  PlacementRates rates;
  rates.expert_bytes = 100;
  rates.copy_bytes_per_s = 1000;  // tau = 0.1 s
  rates.backward_other_s = 10;
  for (const auto& [forward_other_s, expected] : std::map<double, int64_t>{
           {0, 0}, {0.006, 0}, {0.0126, 2}, {0.09, 14}, {0.11, 17}, {0.35, 56}, {100, 128}}) {
    rates.forward_other_s = forward_other_s;
    CHECK(hidden_between(rates, 8) == expected);
  }
  rates.backward_other_s = 0.15;  // one cut for both directions: the shorter time
  CHECK(hidden_between(rates, 8) == 24);
}

/// Copies in two transfers: at the first time of compute between the layers that hides some of
/// three copies and not all.
PlanSpec cut_spec(std::vector<Stage> more) {
  std::vector<Stage> stages = {stage("prophet", split())};
  for (Nanoseconds ns = 1; ns < 1000; ++ns) {
    PlanSpec spec = timed(stages, 60, ns);
    if (!make_plan(spec)->graph.find_op("b3.moe.copy_a").valid()) continue;
    for (Stage& s : more) spec.system.stages.push_back(std::move(s));
    return spec;
  }
  FAIL("no compute cuts the copies");
  return {};
}

TEST_CASE("copies are cut in the slots that come first and the rest, but the first layer's") {
  const auto plan = make_plan(cut_spec({}));
  const Graph& g = plan->graph;
  const Op& make = g.op(found(g, "b3.moe.place"));
  constexpr int64_t kWhole = ExpertShare::kWhole;
  const int64_t cut = hidden_between(ops::placement_rates(make), 3);
  for (const std::string suffix : {"", ".dw"}) {
    const Op& a = g.op(found(g, "b3.moe.copy_a" + suffix));
    const Op& b = g.op(found(g, "b3.moe.copy_b" + suffix));
    CHECK(kWhole * attr_int(a, "first") + attr_int(a, "begin") == cut);
    CHECK((attr_int(a, "last") == 3 && !a.attrs.contains("end")));
    CHECK((attr_int(b, "first") == 0 && !b.attrs.contains("begin")));
    CHECK(kWhole * (attr_int(b, "last") - 1) + attr_int(b, "end", kWhole) == cut);
    CHECK((attr_string(a, "beside") == "experts" && attr_string(b, "beside") == "between"));
    CHECK(attr_int(g.op(found(g, "b1.moe.copy" + suffix)), "last") == 3);
  }
  // Both together carry what one op would.
  const auto bytes = [&](const std::string& name) {
    const OpId op = found(g, name);
    return g.def(op).work(g, g.op(op), {}).bytes;
  };
  for (const std::string suffix : {"", ".dw"}) {
    CHECK(bytes("b3.moe.copy_a" + suffix) + bytes("b3.moe.copy_b" + suffix) ==
          Approx(bytes("b1.moe.copy" + suffix)));
  }
}

TEST_CASE("Trans and Agg stand in the gaps that algorithm 2 gives them") {
  const auto plan = make_plan(cut_spec({stage("prophet_schedule")}));
  const Graph& g = plan->graph;
  std::vector<std::string> comm;
  for (const OpId op : plan->orders.lanes[1]) {
    const std::string name = g.op(op).name;
    if (kind(g, op) != "gather_loads" && kind(g, op) != "all_reduce") comm.push_back(name);
  }
  CHECK(comm == std::vector<std::string>{"b1.moe.copy", "b1.moe.a2a_1", "b3.moe.copy_a",
                                         "b1.moe.a2a_2", "b3.moe.copy_b", "b3.moe.a2a_1",
                                         "b3.moe.a2a_2", "b3.moe.a2a_2.dx", "b3.moe.a2a_1.dx",
                                         "b3.moe.copy_b.dw", "b1.moe.a2a_2.dx", "b3.moe.copy_a.dw",
                                         "b1.moe.a2a_1.dx", "b1.moe.copy.dw"});
}

TEST_CASE("no experts travel while rows do, on any lanes and costs") {
  for (const bool own_lane : {false, true}) {
    for (const Nanoseconds experts : {1, 60, 900}) {
      PlanSpec spec = cut_spec({stage("prophet_schedule")});
      spec.cost = timed({}, experts).cost;
      if (own_lane) {
        Stage move;
        move.name = "experts on a lane of their own";
        move.kind = StageKind::kSchedule;
        move.schedule = [](const Graph& graph, Schedule s, const PassContext&) {
          const LaneId own(static_cast<int64_t>(s.lanes.size()));
          s.lanes.push_back({"comm_experts", LaneKind::kComm});
          for (const OpId op : movements(graph)) s.lane_of[op.index()] = own;
          return s;
        };
        spec.system.stages.insert(spec.system.stages.begin() + 1, move);
      }
      const auto plan = make_plan(std::move(spec));
      const HappensBefore order(plan->graph, plan->schedule, plan->orders);
      for (const OpId x : movements(plan->graph)) {
        for (const OpId a : all_to_alls(plan->graph)) {
          CHECK((order.before(x, a) || order.before(a, x)));
        }
      }
    }
  }
}

TEST_CASE("a planner runs under the first all-to-all of its layer") {
  const auto plan = make_plan(timed({stage("prophet"), stage("prophet_schedule")}));
  const auto at = spans(*plan);
  for (const std::string block : {"b1", "b3"}) {
    const Span& make = at.at(found(plan->graph, block + ".moe.place"));
    const Span& rows = at.at(found(plan->graph, block + ".moe.a2a_1"));
    CHECK(make.begin >= rows.begin);
    CHECK(make.end <= rows.end);
  }
}

TEST_CASE("copies travel while the block before computes, gradients while it goes back") {
  const auto plan = make_plan(cut_spec({stage("prophet_schedule")}));
  const auto at = spans(*plan);
  const auto beside = [&](const std::string& transfer, const std::string& compute) {
    CAPTURE(transfer, compute);
    const Span& x = at.at(found(plan->graph, transfer));
    const Span& c = at.at(found(plan->graph, compute));
    CHECK(x.begin < c.end);
    CHECK(c.begin < x.end);
  };
  beside("b3.moe.copy_a", "b1.moe.fc1");
  beside("b3.moe.copy_b", "b1.moe.combine");
  beside("b3.moe.copy_b.dw", "b3.moe.dispatch.dx");
  beside("b3.moe.copy_a.dw", "b1.moe.fc2.dx");
}

TEST_CASE("what compute hides costs nothing, what it does not is exposed as in equation 8") {
  // Whole Trans beside FEC: three ops of 100 ns, from the first all-to-all's end to the second's
  // begin; backward six.
  const auto step = [](Nanoseconds experts) {
    PlanSpec spec = timed({stage("prophet"), stage("prophet_schedule")}, experts);
    return makespan(*make_plan(std::move(spec)));
  };
  const Nanoseconds free = step(1);
  // Block 3's hide in both directions; block 1's are at the start and at the end.
  CHECK(step(60) <= free + 2 * 60);
  CHECK(step(300) <= free + 2 * 300);
  const auto plain = [](Nanoseconds experts) {
    PlanSpec spec = timed({stage("prophet"), stage("blocking_a2a")}, experts);
    return makespan(*make_plan(std::move(spec)));
  };
  CHECK(plain(300) - plain(1) == 4 * 299);
  CHECK(step(300) < plain(300));
}

TEST_CASE("gradients that another stage computes later go back in a later gap") {
  const Options keep = {{"if_slower", std::string("keep")}};
  const auto plan = make_plan(cut_spec({stage("dw_schedule", keep), stage("prophet_schedule")}));
  const HappensBefore order(plan->graph, plan->schedule, plan->orders);
  for (const OpId x : movements(plan->graph)) {
    for (const OpId a : all_to_alls(plan->graph)) {
      CHECK((order.before(x, a) || order.before(a, x)));
    }
  }
}

TEST_CASE("the scheduler is legal beside the other papers' stages") {
  const Options parts = {{"parts", 2.0}, {"before", 2.0}, {"after", 1.0}};
  const std::vector<std::vector<Stage>> mixes = {
      {stage("dw_schedule"), stage("prophet_schedule")},
      {stage("partition", parts), stage("prophet_schedule")},
      {stage("partition", parts), stage("dw_schedule"), stage("prophet_schedule")},
      {stage("prophet_schedule"), stage("priority")},
      {stage("priority"), stage("prophet_schedule"), stage("chunked", {{"bytes", 256.0}})},
      {stage("prophet_schedule"), stage("fixed"), stage("chunked", {{"bytes", 256.0}})},
      {stage("blocking_a2a", {{"experts", false}}), stage("prophet_schedule")},
      {stage("partition", parts), stage("dw_schedule"), stage("prophet_schedule"),
       stage("priority"), stage("chunked", {{"bytes", 256.0}, {"which", std::string("both")}})}};
  for (const bool own_lane : {false, true}) {
    for (size_t m = 0; m < mixes.size(); ++m) {
      CAPTURE(own_lane, m);
      PlanSpec spec = cut_spec(mixes[m]);
      spec.system.sync.lane = own_lane ? ReduceLane::kOwn : ReduceLane::kWithAllToAlls;
      spec.system.sync.place = own_lane ? ReducePlace::kReady : ReducePlace::kAfter;
      const auto plan = make_plan(std::move(spec));  // through the legality checker
      CHECK(makespan(*plan) > 0);
      for (const OpId op : movements(plan->graph)) CHECK(plan->schedule.priority_of(op) == 1);
    }
  }
}

TEST_CASE("without a placement, or with one made too late, the scheduler refuses by name") {
  const auto message = [](std::vector<Stage> stages, int64_t ranks = 2) {
    return message_of<UserError>([&] { make_plan(small_spec(std::move(stages), ranks)); });
  };
  CHECK_THAT(
      message({stage("prophet_schedule")}),
      Contains("stage 'prophet_schedule': the experts are not placed") && Contains("'prophet'"));
  CHECK_THAT(message({stage("top_k"), stage("prophet_schedule")}),
             Contains("stage 'top_k' has use = 'now'") && Contains("allowed: 'next'"));
  CHECK(message({stage("prophet"), stage("prophet_schedule")}, 1).empty());
}

TEST_CASE("experts that travel block compute only where they are asked to") {
  const auto step = [](bool experts) {
    return makespan(
        *make_plan(timed({stage("prophet"), stage("blocking_a2a", {{"experts", experts}})}, 500)));
  };
  CHECK(step(true) > step(false));
}

}  // namespace
}  // namespace moe::test
