// Nothing is silently without effect: what a stage was told and did not do, with its reason.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "engine/analysis/idle_stages.h"
#include "engine/base/rng.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::small_spec;
using test::stage;

/// "stage: reason" each, without what options asked for.
std::vector<std::string> without_effect(PlanSpec spec) {
  const auto plan = make_plan(std::move(spec));
  std::vector<std::string> all;
  for (const IdleStage& s :
       idle_stages(plan->graph, plan->schedule, plan->spec.cost.get(), plan->stages)) {
    if (!s.by_option) all.push_back(s.name + ": " + s.why);
  }
  return all;
}

std::string only(std::vector<Stage> stages) {
  const std::vector<std::string> all = without_effect(small_spec(std::move(stages)));
  INFO(fmt::format("{}", fmt::join(all, "\n")));
  REQUIRE(all.size() == 1);
  return all[0];
}

/// Lines by which any number of parts is shorter.
Stage pipemoe_of(const std::string& degrees) {
  return stage("pipemoe", {{"alpha_a", 1e-6},
                           {"beta_a", 1e-9},
                           {"alpha_e", 1e-6},
                           {"beta_e", 1e-9},
                           {"degrees", degrees}});
}

TEST_CASE("a partition of one sequence per rank says that it cannot be cut") {
  PlanSpec spec = small_spec({stage("partition")});
  test::change_model(spec, [](test::Gpt2& m) { m.batch_per_device = 1; });
  CHECK(without_effect(std::move(spec)) ==
        std::vector<std::string>{
            "partition: a rank has one sequence (batch_per_device = 1), and a batch is cut between "
            "sequences; give at least 2"});
}

TEST_CASE("a partition that leaves MoE layers whole says which op is in its way") {
  const std::string cut_before = only({pipemoe_of("2"), stage("partition", {{"parts", 2.0}})});
  CHECK_THAT(
      cut_before,
      Contains(
          "partition: 2 of 2 MoE layers stay whole; for the first of them: op 'b1.moe.a2a_1.p0'") &&
          Contains("already one part of a cut"));
  CHECK_THAT(only({stage("micro_ops", {{"bytes", 100.0}}), stage("partition")}),
             Contains("partition: 2 of 2 MoE layers stay whole"));
  CHECK_THAT(
      only({stage("prophet"), stage("partition", {{"parts", 2.0}})}),
      Contains("no range around the layer takes less time in 2 parts; from 'b1.moe.loads' to "
               "'b1.moe.combine'"));
}

TEST_CASE("what a stage before has done already is named as such") {
  for (const char* policy : {"prophet", "top_k", "swap"}) {
    CHECK_THAT(only({stage(policy), stage("irregular_a2a")}),
               Contains("irregular_a2a: 4 all-to-alls already carry only real rows"));
    CHECK_THAT(only({stage(policy), stage("used_rows")}),
               Contains("ops of experts already compute only the rows in use"));
  }
}

TEST_CASE("a stage that finds nothing to do says what it looked for") {
  CHECK_THAT(only({stage("micro_ops")}),
             Contains("micro_ops: no all-to-all is longer than bytes = 3e+07; the longest has"));
  CHECK_THAT(only({stage("chunked")}), Contains("chunked: no all_reduce is longer than bytes"));
  CHECK_THAT(only({pipemoe_of("1")}), Contains("pipemoe: no MoE layer is cut; degree 1"));
  CHECK_THAT(only({stage("serial"), stage("dw_schedule")}),
             Contains("dw_schedule: no weight gradient may run during an all-to-all"));
}

/// What dw_schedule says beside all-reduces on a lane of their own. Other ops take 5 ns.
std::vector<std::string> dw_without_effect(const std::string& overshoot, Nanoseconds a2a,
                                           const std::function<Nanoseconds(OpId)>& dw,
                                           const std::function<Nanoseconds(OpId)>& all_reduce) {
  PlanSpec spec = small_spec({stage("dw_schedule", {{"overshoot", overshoot}})});
  spec.system.sync = {.place = ReducePlace::kAfter, .lane = ReduceLane::kOwn};
  spec.cost = std::make_shared<test::GivenCost>([=](const Graph& graph, OpId op) -> Nanoseconds {
    if (graph.def(op).collective == Collective::kAllToAll) return a2a;
    if (graph.def(op).collective == Collective::kAllReduce) return all_reduce(op);
    return graph.op(op).is_dw ? dw(op) : 5;
  });
  return without_effect(std::move(spec));
}

TEST_CASE("weight gradients that are too long to hide are not said to be forbidden") {
  const auto always = [](Nanoseconds ns) { return [ns](OpId) { return ns; }; };
  const std::string too_long =
      "without overshoot none is assigned: each takes at least twice the time of the all-to-alls "
      "that it may run under";
  const auto never = dw_without_effect("never", 10, always(20), always(5));
  REQUIRE(never.size() == 1);
  CHECK_THAT(never[0], Contains("dw_schedule: " + too_long));
  for (const auto& timeless : {dw_without_effect("allow", 0, always(20), always(5)),
                               dw_without_effect("never", 10, always(0), always(5))}) {
    REQUIRE(timeless.size() == 1);
    CHECK_THAT(timeless[0], Contains("dw_schedule: all-to-alls, or the weight gradients beside "
                                     "them, take no time"));
  }
}

TEST_CASE("an assignment that is undone leaves its reason, though no other one was possible") {
  int undone = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::map<OpId, Nanoseconds> times;
    Rng rng(seed);
    const auto random = [&](OpId op) {
      return times.try_emplace(op, rng.below(1000)).first->second;
    };
    const auto said = dw_without_effect(
        "allow", 10, [&](OpId op) { return 20 + random(op) / 10; }, random);
    for (const std::string& one : said) {
      CHECK_THAT(one, Contains("dw_schedule: undone (with overshoot): ") &&
                          Contains("; without overshoot none is assigned: each takes at least"));
    }
    undone += static_cast<int>(said.size());
  }
  CHECK(undone > 0);
}

TEST_CASE("an option that has no effect beside another stage is named") {
  const auto all = without_effect(small_spec({stage("fastermoe_pipeline"), stage("priority")}));
  REQUIRE(all.size() == 2);  // without the option there is nothing else to choose
  CHECK_THAT(all[0], Contains("priority: hold: in 2 of 2 MoE layers"));
}

TEST_CASE("what options ask for is as told") {
  const std::vector<std::pair<std::string, Options>> no_ops = {
      {"capacity_pipeline", {{"degree", 1.0}}},
      {"fastermoe_pipeline", {{"groups", 1.0}}},
      {"partition", {{"parts", 1.0}}}};
  for (const auto& [pass, options] : no_ops) {
    INFO(pass);
    const auto plan = make_plan(small_spec({stage(pass, options)}));
    const std::vector<IdleStage> idle =
        idle_stages(plan->graph, plan->schedule, plan->spec.cost.get(), plan->stages);
    REQUIRE(idle.size() == 1);
    CHECK(idle[0].by_option);
    CHECK_THAT(idle[0].why, Contains(" = 1 changes nothing"));
  }
}

TEST_CASE("a scheduler without which the step is the same says so") {
  Stage twice = stage("again");
  twice.schedule = [](const Graph& graph, Schedule s, const PassContext& context) {
    for (size_t i = 1; i < graph.num_ops(); ++i) {
      s.before(OpId(static_cast<int64_t>(i) - 1), OpId(static_cast<int64_t>(i)), context.stage, "");
    }
    return s;
  };
  const auto all = without_effect(small_spec({stage("serial"), twice}));
  INFO(fmt::format("{}", fmt::join(all, "\n")));
  REQUIRE(all.size() == 1);
  CHECK_THAT(all[0], Contains("again: the simulated step is the same without it"));
  CHECK(without_effect(small_spec({stage("serial")})).empty());
  PlanSpec unknown = small_spec({stage("serial"), twice});
  unknown.cost = std::make_shared<NoTimes>(unknown.cluster);
  CHECK(without_effect(std::move(unknown)).empty());
}

TEST_CASE("a lane that a later stage changes back was without effect") {
  const auto mover = [](const std::string& name, const std::string& lane) {
    Stage made = stage(name);
    made.schedule = [lane](const Graph& graph, Schedule s, const PassContext&) {
      for (const OpId op : test::ops_of(graph, "all_to_all")) s.lane_of[op.index()] = s.lane(lane);
      return s;
    };
    return made;
  };
  PlanSpec spec = small_spec({mover("there", "comm_reduce"), mover("back", "comm")});
  spec.system.sync.lane = ReduceLane::kOwn;
  const auto all = without_effect(std::move(spec));
  REQUIRE(!all.empty());
  CHECK_THAT(all[0], Contains("there: the simulated step is the same without it"));
}

TEST_CASE("a report counts what a stage changed") {
  const auto plan = make_plan(
      small_spec({pipemoe_of("2"), stage("priority", {{"hold", false}}), stage("serial")}));
  CHECK(plan->stages[0].changes.ops > 0);
  CHECK(plan->stages[1].changes.order_edges == static_cast<int64_t>(plan->graph.num_ops()) - 1);
  CHECK(plan->stages[2].changes.priorities > 0);
  CHECK(plan->stages[2].changes.disciplines == 1);
  CHECK(plan->stages[2].changes.order_edges == 0);
}

}  // namespace
}  // namespace moe
