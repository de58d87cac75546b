// FasterMoE's rounds between groups of workers, executed: rows are what they are in one exchange.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/exec/support.h"

namespace moe::test {
namespace {

std::shared_ptr<const Plan> plan_in_rounds(PlanSpec spec, double groups) {
  spec.system.stages = {{.name = "fastermoe_pipeline", .options = {{"groups", groups}}}};
  return make_plan(std::move(spec));
}

TEST_CASE("exchanged in rounds, a step has the whole's loss and routing, and trains as it does") {
  for (const auto& [ranks, groups] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    for (const char* gate : {"switch", "top2"}) {
      CAPTURE(ranks, groups, gate);
      const PlanSpec spec = spec_of(small_model(gate), ranks, Precision::kF64);
      const RunResult whole = run_poisoned(*plan_of(spec), 3, Precision::kF64);
      const auto plan = plan_in_rounds(spec, groups);
      CHECK(plan->stages.at(0).changed);
      const RunResult rounds = run_poisoned(*plan, 3, Precision::kF64);
      CHECK(rounds.peak_bytes == plan->memory.peak_bytes());
      // A row's bits in float64 do not depend on the rows beside it: the forward is the same to the
      // last bit. A weight's gradient is a sum over rows, which every rank takes group by group
      // from its own on: the same but for the order of a sum.
      CHECK(rounds.losses.at(0) == whole.losses.at(0));
      for (size_t step = 0; step < whole.losses.size(); ++step) {
        CHECK(std::abs(rounds.losses[step] - whole.losses[step]) <= 1e-13 * whole.losses[step]);
        for (size_t layer = 0; layer < whole.moe[step].size(); ++layer) {
          CHECK(rounds.moe[step][layer].checksum == whole.moe[step][layer].checksum);
        }
      }
    }
  }
}

TEST_CASE("rounds send as many bytes as one exchange, each to the ranks of one group") {
  const PlanSpec spec = spec_of(small_model(), 4);
  const auto sent = [](const Plan& plan) {
    const RunResult result = run_cpu(plan, options_of(plan, 1));
    Bytes bytes = 0;
    for (const Span& span : result.timelines[0].spans) {
      if (plan.graph.def(span.op).collective != Collective::kAllToAll) continue;
      CHECK(span.bytes == wire_bytes(plan.graph, span.op, {}));
      bytes += span.bytes;
    }
    return bytes;
  };
  const Bytes whole = sent(*plan_of(spec));
  CHECK(whole > 0);
  CHECK(sent(*plan_in_rounds(spec, 2)) == whole);
  CHECK(sent(*plan_in_rounds(spec, 4)) == whole);
}

}  // namespace
}  // namespace moe::test
