// What StepTrial says a step would take, against a run in which the placements are in force.
#include "engine/sim/step_trial.h"

#include <catch2/catch.hpp>

#include "engine/passes/placement/place_experts.h"
#include "tests/sim/routing.h"

namespace moe::test {
namespace {

Stage placed_by_test() {
  Stage stage;
  stage.name = "test";
  stage.kind = StageKind::kPlacement;
  stage.transform = [](Graph graph, const PassContext& context) {
    const PlacementStage how = {
        .policy = "test", .shadows = 2, .extra_residents = 1, .moves_residents = true};
    return place_experts(std::move(graph), how, context);
  };
  return stage;
}

/// The same placement of a layer in every step: a resident moves, and experts get copies.
Placement moved(const PlaceInput& in) {
  Placement p(in.now.bounds());
  p.swap_owners(0, 3 - in.layer);
  p.add_resident(1, 1 - p.owner(1));
  p.add_shadow(2, 1 - p.owner(2));
  return p;
}

TEST_CASE("a trial takes what the step takes once the placements are in force, to the nanosecond") {
  PlanSpec spec = routed_spec({placed_by_test()}, 2, flat_cluster(2));
  spec.routing = routing_of([](const RoutingQuery& q) {
    RoutingQuery first = q;
    first.step = 0;
    return random_loads(first, 3);
  });
  const auto plan = make_plan(std::move(spec));
  StepTrial trial(plan);
  RunOptions options;
  options.steps = 3;
  std::vector<Nanoseconds> plain, tried;  // as the last layer's policy sees them, by step
  options.policies.place = [&](int64_t, const std::string&) -> PlacementFunction {
    return [&](const PlaceInput& in) {
      const Placement next = moved(in);
      if (in.layer == 1) {
        plain.push_back(trial.step_ns(in, in.now));
        tried.push_back(trial.step_ns(in, next));
        CHECK(trial.step_ns(in, in.now) == plain.back());
      }
      trial.placed(in, next);
      return next;
    };
  };
  const RunResult result = make_simulator()->run(*plan, options);
  const std::vector<Nanoseconds> placed(3, result.metrics[2].makespan_ns);
  CHECK(tried == placed);
  CHECK(plain[1] == placed[1]);
  CHECK(plain[0] != placed[0]);  // the first layer has its placement already
  CHECK(result.metrics[1].makespan_ns == placed[1]);
  CHECK(result.metrics[0].makespan_ns != placed[0]);
}

TEST_CASE("before its first call a layer has the caller's loads and plain expert parallelism") {
  const auto spec_of = [](int64_t shift) {
    PlanSpec spec = routed_spec({placed_by_test()}, 2, flat_cluster(2));
    spec.routing = routing_of([shift](const RoutingQuery& q) {
      RoutingQuery same = q;
      same.step = 0, same.layer = 0;
      return random_loads(same, static_cast<uint64_t>(3 + shift * q.layer));
    });
    return spec;
  };
  const auto alike = make_plan(spec_of(0)), different = make_plan(spec_of(1));
  StepTrial trial(different);
  RunOptions options;
  Nanoseconds first = 0;
  options.policies.place = [&](int64_t, const std::string&) -> PlacementFunction {
    return [&](const PlaceInput& in) {
      if (in.layer == 0) first = trial.step_ns(in, in.now);
      return in.now;
    };
  };
  const RunResult result = make_simulator()->run(*different, options);
  options.policies.place = [](int64_t, const std::string&) -> PlacementFunction {
    return [](const PlaceInput& in) { return in.now; };
  };
  CHECK(first == make_simulator()->run(*alike, options).metrics[0].makespan_ns);
  CHECK(first != result.metrics[0].makespan_ns);
}

}  // namespace
}  // namespace moe::test
