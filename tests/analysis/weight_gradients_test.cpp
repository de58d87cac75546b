#include "engine/analysis/weight_gradients.h"

#include <catch2/catch.hpp>

#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

TEST_CASE("all-to-alls and dW that can have nothing to do with each other are left out") {
  const OverlapProblem all = {
      {10, 20, 30, 40},
      {1, 2, 3},
      {{false, false, false}, {true, false, false}, {false, false, false}, {true, false, true}}};
  const OverlapProblem some = without_idle(all);
  CHECK(some.a2a_ns == std::vector<Nanoseconds>{20, 40});
  CHECK(some.dw_ns == std::vector<Nanoseconds>{1, 3});
  CHECK(some.allowed == std::vector<std::vector<bool>>{{true, false}, {true, true}});
  CHECK(overlap_bound(some) == overlap_bound(all));
  CHECK(assign_greedy(some, true).hidden_ns == assign_greedy(all, true).hidden_ns);

  const OverlapProblem none = without_idle({{5}, {6}, {{false}}});
  CHECK((none.a2a_ns.empty() && none.dw_ns.empty()));
}

TEST_CASE("the best choice lies between the greedy one and the bound, and is looked for in small") {
  PlanSpec spec = small_spec();
  const auto plan = make_plan(spec);
  const WeightGradientOverlap small = weight_gradient_overlap(plan->graph, *plan->spec.cost);
  CHECK(small.num_a2a > 0);
  CHECK(small.a2a_ns == static_cast<Nanoseconds>(small.num_a2a) * 10);
  CHECK(small.dw_ns == static_cast<Nanoseconds>(small.num_dw) * 10);
  REQUIRE(small.exact_ns);
  CHECK(small.greedy_ns <= *small.exact_ns);
  CHECK(*small.exact_ns <= small.bound_ns);

  change_model(spec, [&](Gpt2& m) { m.layers = 16; });
  const auto large = make_plan(spec);
  CHECK_FALSE(weight_gradient_overlap(large->graph, *spec.cost).exact_ns);
}

TEST_CASE("a forward alone has no weight gradients to hide") {
  PlanSpec spec = small_spec();
  spec.inference = true;
  const auto plan = make_plan(spec);
  const WeightGradientOverlap none = weight_gradient_overlap(plan->graph, *plan->spec.cost);
  CHECK(none.num_a2a + none.num_dw == 0);
  CHECK(none.bound_ns == 0);
}

}  // namespace
}  // namespace moe::test
