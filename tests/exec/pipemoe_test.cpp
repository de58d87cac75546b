// PipeMoE's cut, executed: rows of a chunk are what they are in the whole.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// Lines by which the small layer is best in several chunks.
std::shared_ptr<const Plan> cut_plan(PlanSpec spec, const std::string& degrees) {
  Stage stage;
  stage.name = "pipemoe";
  stage.options = {{"alpha_a", 1e-9},
                   {"beta_a", 1e-6},
                   {"alpha_e", 1e-9},
                   {"beta_e", 1e-6},
                   {"degrees", degrees}};
  spec.system.stages = {stage};
  return make_plan(std::move(spec));
}

TEST_CASE("cut by pipemoe, a step has the whole's loss and routing, and trains as it does") {
  for (const int64_t ranks : {2, 4}) {
    const PlanSpec spec = spec_of(small_model(), ranks, Precision::kF64);
    const RunResult whole = run_poisoned(*plan_of(spec), 3, Precision::kF64);
    for (const char* degree : {"2", "3", "4"}) {  // a capacity that 3 does not divide
      CAPTURE(ranks, degree);
      const auto plan = cut_plan(spec, degree);
      CHECK(plan->stages.at(0).changed);
      const RunResult parts = run_poisoned(*plan, 3, Precision::kF64);
      CHECK(parts.peak_bytes == plan->memory.peak_bytes());
      // In float64 a row's bits do not depend on the rows beside it: the forward is the same to the
      // last bit. A weight's gradient is a sum over rows, which the cut reorders.
      CHECK(parts.losses.at(0) == whole.losses.at(0));
      for (size_t step = 0; step < whole.losses.size(); ++step) {
        CHECK(std::abs(parts.losses[step] - whole.losses[step]) <= 1e-13 * whole.losses[step]);
        for (size_t layer = 0; layer < whole.moe[step].size(); ++layer) {
          CHECK(parts.moe[step][layer].checksum == whole.moe[step][layer].checksum);
        }
      }
    }
  }
}

TEST_CASE("in float32 the cut stays within rounding of the whole's losses") {
  const PlanSpec spec = spec_of(small_model("top2"), 2);
  const RunResult whole = run_poisoned(*plan_of(spec), 3, Precision::kF32);
  const RunResult parts = run_poisoned(*cut_plan(spec, "3"), 3, Precision::kF32);
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    CHECK(std::abs(parts.losses[step] - whole.losses[step]) <= 2e-6 * whole.losses[step]);
  }
}

}  // namespace
}  // namespace moe::test
