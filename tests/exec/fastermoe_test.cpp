// FasterMoE's rounds between groups of workers, executed: rows are what they are in one exchange.
#include <catch2/catch.hpp>

#include "tests/exec/support.h"

namespace moe::test {
namespace {

std::shared_ptr<const Plan> plan_in_rounds(PlanSpec spec, double groups) {
  spec.system.stages = {{.name = "fastermoe_pipeline", .options = {{"groups", groups}}}};
  return make_plan(std::move(spec));
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
