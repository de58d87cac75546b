#include "engine/passes/pipeline.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::message_of;
using test::small_spec;
using test::stage;

std::string refusal(const std::string& pass, Options options) {
  return message_of<UserError>([&] { resolve_options(pass, builtin_pass(pass).options, options); });
}

TEST_CASE("every built-in pass has a name, a text, one function of its kind, and legal defaults") {
  for (const PassDef& pass : builtin_passes()) {
    INFO(pass.name);
    CHECK(&builtin_pass(pass.name) == &pass);
    CHECK(std::string(pass.doc).size() > 20);
    CHECK((pass.transform != nullptr) == !schedules(pass.kind));
    CHECK((pass.schedule != nullptr) == schedules(pass.kind));
    CHECK(resolve_options(pass.name, pass.options, {}).size() == pass.options.size());
  }
}

TEST_CASE("an unknown pass or option is refused with the nearest name") {
  CHECK_THAT(message_of<UserError>([] { builtin_pass("dw_shedule"); }), Contains("'dw_schedule'"));
  CHECK_THAT(refusal("capacity_pipeline", {{"degre", 2.0}}),
             Contains("capacity_pipeline") && Contains("'degree'"));
}

TEST_CASE("an option of the wrong type, beyond its range or unknown in its list is refused") {
  CHECK_THAT(refusal("capacity_pipeline", {{"degree", true}}),
             Contains("capacity_pipeline.degree = true") && Contains("a number"));
  CHECK_THAT(refusal("capacity_pipeline", {{"degree", 65.0}}), Contains("1 to 64"));
  CHECK_THAT(refusal("capacity_pipeline", {{"degree", std::nan("")}}), Contains("1 to 64"));
  CHECK_THAT(refusal("dw_schedule", {{"overshoot", std::string("nevr")}}),
             Contains("dw_schedule.overshoot") && Contains("'never'"));
}

Stage function_stage(const std::string& name, StageKind kind, std::vector<std::string>& calls) {
  Stage made = stage(name);
  made.kind = kind;
  if (kind == StageKind::kSchedule) {
    made.schedule = [&calls](const Graph& graph, Schedule s, const PassContext& context) {
      CHECK(graph.find_op("wte.sgd").valid());
      calls.push_back(context.stage);
      return s;
    };
  } else {
    made.transform = [&calls, kind](Graph graph, const PassContext& context) {
      CHECK(graph.find_op("wte.sgd").valid() == (kind == StageKind::kStep));
      calls.push_back(context.stage);
      return graph;
    };
  }
  return made;
}

TEST_CASE("stages run forward, step, schedule, and within a kind in the order listed") {
  std::vector<std::string> calls;
  const auto made = [&](const char* name, StageKind kind) {
    return function_stage(name, kind, calls);
  };
  const auto plan =
      make_plan(small_spec({made("s1", StageKind::kSchedule), made("t1", StageKind::kStep),
                            made("f1", StageKind::kForward), made("s2", StageKind::kSchedule),
                            made("f2", StageKind::kForward), made("t2", StageKind::kStep)}));
  CHECK(calls == std::vector<std::string>{"f1", "f2", "t1", "t2", "s1", "s2"});
  REQUIRE(plan->stages.size() > 6);
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(plan->stages[i].name == calls[i]);
    CHECK(!plan->stages[i].changed);
  }
  CHECK(plan->stages[6].name == "backward");
}

TEST_CASE("a stage that edits the graph or the schedule is reported as having changed it") {
  Stage rename = stage("rename");
  rename.kind = StageKind::kStep;
  rename.transform = [](Graph graph, const PassContext&) {
    graph.op(OpId(0)).name += ".renamed";
    return graph;
  };
  const auto plan = make_plan(small_spec({rename, stage("serial")}));
  CHECK(plan->stages[0].changed);
  CHECK(plan->stages[1].changed);
}

TEST_CASE("a transform that breaks the graph is refused with its name and the op") {
  Stage breaks = stage("my_pass");
  breaks.kind = StageKind::kForward;
  breaks.transform = [](Graph graph, const PassContext&) {
    graph.remove(graph.find_op("b1.moe.gelu"));
    return graph;
  };
  const std::string message = message_of<UserError>([&] { make_plan(small_spec({breaks})); });
  CHECK_THAT(message, Contains("my_pass") && Contains("b1.moe.fc2"));
}

TEST_CASE("an error that a stage throws names the stage once") {
  Stage throws = stage("my_pass");
  throws.schedule = [](const Graph&, Schedule, const PassContext&) -> Schedule {
    throw run_error("too bad");
  };
  CHECK(message_of<RunError>([&] { make_plan(small_spec({throws})); }) ==
        "stage 'my_pass': too bad");
}

TEST_CASE("a scheduler that puts an op on a lane that does not exist is refused by name") {
  Stage lost = stage("my_lanes");
  lost.schedule = [](const Graph&, Schedule s, const PassContext&) {
    s.lane_of[3] = LaneId(9);
    return s;
  };
  CHECK_THAT(message_of<RunError>([&] { make_plan(small_spec({lost})); }),
             Contains("'my_lanes'") && Contains("lane number 9"));
}

TEST_CASE("in a program that stays serial no dW moves, and the plan says so") {
  const auto plan = make_plan(small_spec({stage("dw_schedule"), stage("serial")}));
  CHECK(plan->stages.at(0).name == "serial");
  REQUIRE(plan->stages.at(1).without_effect.size() == 1);
  CHECK_THAT(plan->stages[1].without_effect[0],
             Contains("order edges of earlier stages forbid it"));
}

TEST_CASE("two schedulers that contradict each other are refused with both names") {
  const auto order = [](const std::string& name, bool forwards) {
    Stage made = stage(name);
    made.schedule = [forwards](const Graph& graph, Schedule s, const PassContext& context) {
      const OpId a = graph.find_op("head.dw"), b = graph.find_op("b0.mlp.fc1.dw");
      s.before(forwards ? a : b, forwards ? b : a, context.stage, "said so");
      return s;
    };
    return made;
  };
  CHECK_THAT(message_of<RunError>([&] {
               make_plan(small_spec({order("early", true), order("late", false)}));
             }),
             Contains("stage 'early'") && Contains("stage 'late'") && Contains("head.dw"));
}

}  // namespace
}  // namespace moe
