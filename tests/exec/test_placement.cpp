// Experts that a placement puts on devices: which it is is no part of the model. Against the plain
// program in double, with every use of a buffer outside its tensor's life made to show.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/exec/parameters.h"
#include "engine/graph/op_def.h"
#include "engine/passes/place_experts.h"
#include "tests/exec/support.h"

namespace moe::testing {
namespace {

Stage pass(const std::string& name, Options options = {}) {
  Stage stage;
  stage.name = name;
  stage.options = std::move(options);
  return stage;
}

/// A placement stage whose policy a test gives.
Stage placed_by(PlacementStage how) {
  Stage stage;
  stage.name = how.policy = "test";
  stage.kind = StageKind::kPlacement;
  stage.transform = [how](Graph graph, const PassContext& context) {
    return place_experts(std::move(graph), how, context);
  };
  return stage;
}

std::shared_ptr<const Plan> plan_with(PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

PlanSpec spec_with(const std::string& gate, int64_t ranks, Precision precision = Precision::kF64) {
  return spec_of(small_model(gate, 2), ranks, precision);
}

RunResult run_poisoned(const Plan& plan, int64_t steps, PlacementFunction policy = nullptr) {
  RunOptions options = options_of(plan, steps);
  options.poison = true;
  options.keep_grad_norms = true;
  if (policy) options.place = [policy](int64_t, const std::string&) { return policy; };
  return run_cpu(plan, options);
}

void check_same_model(const RunResult& a, const RunResult& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (size_t step = 0; step < a.losses.size(); ++step) {
    CHECK(b.losses[step] == Approx(a.losses[step]).epsilon(1e-11));
    for (size_t layer = 0; layer < a.moe[step].size(); ++layer) {
      CAPTURE(step, layer);
      CHECK(a.moe[step][layer].checksum == b.moe[step][layer].checksum);
      CHECK(a.moe[step][layer].dropped == b.moe[step][layer].dropped);
      CHECK(a.moe[step][layer].counts == b.moe[step][layer].counts);
    }
  }
  for (const auto& [name, norm] : a.grad_l2) {
    INFO(name);
    CHECK(b.grad_l2.at(name) == Approx(norm).epsilon(1e-9));
    CHECK(b.grad_projection.at(name) ==
          Approx(a.grad_projection.at(name)).epsilon(1e-9).margin(1e-12));
    CHECK(b.param_l2.at(name) == Approx(a.param_l2.at(name)).epsilon(1e-9));
    CHECK(b.param_projection.at(name) ==
          Approx(a.param_projection.at(name)).epsilon(1e-9).margin(1e-12));
  }
}

/// Legal edits at random, another set every step and layer; the same on all ranks.
PlacementFunction random_policy(uint64_t seed, bool even) {
  return [seed, even](const PlaceInput& input) {
    Rng rng(seed * 1000 + static_cast<uint64_t>(input.step * 10 + input.layer));
    Placement p = input.now;
    p.clear_shadows();
    const PlacementBounds& b = p.bounds();
    for (int i = 0; i < 12; ++i) {
      const int64_t expert = rng.below(b.experts), device = rng.below(b.devices);
      const int64_t what = rng.below(6), other = rng.below(b.experts);
      try {
        if (what < 2) p.add_shadow(expert, device);
        if (what == 2 && b.residents * b.devices > b.experts) p.add_resident(expert, device);
        if (what == 3) p.move_owner(expert, device);
        if (what == 4) p.swap_owners(expert, other);
        if (what == 5) p.remove(expert, device);
      } catch (const UserError&) {  // no room, or not there
      }
    }
    for (int64_t e = 0; e < b.experts; ++e) {
      p.set_sharing(e, even && rng.below(2) == 0 ? Sharing::kEven : Sharing::kLocal);
    }
    return p;
  };
}

TEST_CASE("where experts lie is no part of the model") {
  const std::string gate = GENERATE("switch", "top2");
  for (const int64_t ranks : {1, 2, 4}) {
    const RunResult expected = run_poisoned(*plan_with(spec_with(gate, ranks), {}), 4);
    for (uint64_t seed = 0; seed < 6; ++seed) {
      CAPTURE(gate, ranks, seed);
      const PlacementStage how = {.shadows = 1 + static_cast<int64_t>(seed % 3),
                                  .extra_residents = static_cast<int64_t>(seed % 2),
                                  .moves_residents = seed != 4};
      const auto plan = plan_with(spec_with(gate, ranks), {placed_by(how)});
      PlacementFunction policy = random_policy(seed, seed % 2 == 0);
      if (!how.moves_residents) {
        policy = [](const PlaceInput& input) {
          Placement p = input.now;
          p.clear_shadows();
          const int64_t e = input.step % p.bounds().experts;
          for (int64_t d = 0; d < p.bounds().devices; ++d) {
            if (!p.holds(d, e)) p.add_shadow(e, d);
          }
          return p;
        };
      }
      const RunResult result = run_poisoned(*plan, 4, policy);
      check_same_model(expected, result);
      if (ranks > 1) REQUIRE(result.placements.size() == 4);
    }
  }
}

TEST_CASE("built-in policies train the same model") {
  const std::vector<Stage> policies = {
      pass("placed", {{"shadows", 0.0}}),
      pass("prophet", {{"shadows", 2.0}}),
      pass("prophet", {{"shadows", 2.0}, {"use", std::string("now")}}),
      pass("fastermoe_shadowing", {{"shadows", 2.0}}),
      pass("top_k", {{"shadows", 2.0}, {"k", 2.0}}),
      pass("eplb"),
      pass("swap")};
  const auto plain = plan_with(spec_with("top2", 4), {});
  const RunResult expected = run_poisoned(*plain, 3);
  for (const Stage& policy : policies) {
    CAPTURE(policy.name);
    check_same_model(expected, run_poisoned(*plan_with(spec_with("top2", 4), {policy}), 3));
  }
}

TEST_CASE("fifty steps with experts that move leave the optimiser where fifty without do") {
  const RunResult expected = run_poisoned(*plan_with(spec_with("switch", 2), {}), 50);
  const PlacementStage how = {.shadows = 2, .extra_residents = 1, .moves_residents = true};
  const auto plan = plan_with(spec_with("switch", 2), {placed_by(how)});
  const RunResult result = run_poisoned(*plan, 50, random_policy(7, true));
  for (const auto& [name, norm] : expected.param_l2) {
    INFO(name);
    CHECK(result.param_l2.at(name) == Approx(norm).epsilon(1e-9));
  }
  CHECK(result.losses.back() == Approx(expected.losses.back()).epsilon(1e-9));
}

}  // namespace
}  // namespace moe::testing
