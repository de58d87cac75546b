// Lancet's partition, executed: a batch in parts is routed, and trained, as the whole batch.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/exec/finite.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// One range around the MoE layer with so many ops before its dispatch and after its combine.
std::vector<Stage> parts_of_range(double parts, double before, double after) {
  return {pass("irregular_a2a"), pass("used_rows"),
          pass("partition", {{"parts", parts}, {"before", before}, {"after", after}})};
}

int64_t all_dropped(const RunResult& result) {
  int64_t dropped = 0;
  for (const auto& step : result.moe) {
    for (const MoeStats& layer : step) dropped += layer.dropped;
  }
  return dropped;
}

struct Range {
  double before, after;
};

/// In float64 the reference kernels give a row the same bits whatever rows stand beside it, and the
/// parts lie where the whole's rows lie: everything is equal to the last bit.
void check_parts(const std::string& gate, const std::vector<Range>& ranges) {
  int64_t dropped = 0;
  for (const auto& [ranks, rows] : {std::pair{1, 5}, {2, 4}, {4, 5}}) {
    const PlanSpec spec = spec_of(small_model(gate, rows), ranks, Precision::kF64);
    const auto whole = plan_with(spec, {pass("irregular_a2a"), pass("used_rows")});
    const RunResult expected = run_poisoned(*whole, 2, Precision::kF64);
    dropped += all_dropped(expected);
    for (const Range& range : ranges) {
      for (const double parts : {1, 2, 3, 4}) {
        CAPTURE(gate, ranks, rows, range.before, range.after, parts);
        const auto plan = plan_with(spec, parts_of_range(parts, range.before, range.after));
        const std::string first = range.before > 0 ? "b1.moe.gate.p" : "b1.moe.dispatch.p";
        for (int p = 0; p < 5; ++p) {
          REQUIRE(plan->graph.find_op(first + std::to_string(p)).valid() ==
                  (parts > 1 && p < parts));
        }
        CHECK(same_run(expected, run_poisoned(*plan, 2, Precision::kF64)));
      }
    }
  }
  CHECK(dropped > 0);
}

TEST_CASE("token-scope gates: a batch in parts routes and trains as the whole, bit by bit") {
  // The gate; the gate and the attention before it; the layer alone; up to the head's LayerNorm.
  check_parts(GENERATE("switch", "hash", "random"), {{1, 0}, {6, 1}, {0, 0}, {3, 1}});
}

TEST_CASE("batch-scope gates: the rows after the gate go in parts, bit by bit") {
  check_parts(GENERATE("bpr", "top2", "expert_choice"), {{0, 0}, {0, 1}});
}

TEST_CASE("the parts of a gate are looked at for numbers that are not finite as the gate is") {
  const PlanSpec spec = spec_of(small_model("switch", 4), 2);
  const auto floats_of = [&](std::vector<Stage> stages, const char* name) {
    const auto plan = plan_with(spec, std::move(stages));
    const OpId op = plan->graph.find_op(name);
    REQUIRE(op.valid());
    std::vector<size_t> outputs;
    const std::vector<TensorId> looked_at = finite_operands(plan->graph, plan->graph.op(op));
    for (size_t i = 0; i < plan->graph.op(op).outputs.size(); ++i) {
      const TensorId t = plan->graph.out(op, i);
      if (std::count(looked_at.begin(), looked_at.end(), t) > 0) outputs.push_back(i);
    }
    return outputs;
  };
  const std::vector<size_t> whole = floats_of({}, "b1.moe.gate");
  CHECK(whole == std::vector<size_t>{0, 1});
  CHECK(floats_of(parts_of_range(2, 1, 0), "b1.moe.gate.p1") == whole);
}

}  // namespace
}  // namespace moe::test
