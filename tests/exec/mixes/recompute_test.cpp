// Training with blocks whose activations are made again (recompute = "blocks"), executed: the same
// bits as with activations that are kept.
#include <catch2/catch.hpp>
#include <map>

#include "engine/cost/cost_model.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

enum class Recompute : uint8_t { kNone, kBlocks };

RunResult train(PlanSpec spec, Recompute recompute, Precision precision) {
  if (recompute == Recompute::kBlocks) spec.system.stages.push_back(pass("recompute"));
  const auto plan = make_plan(spec);
  RunOptions options = options_of(*plan, 3);
  options.precision = precision;
  options.test.poison = true;
  options.train.keep_grad_norms = true;
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.peak_bytes == plan->memory.peak_bytes());
  return result;
}

TEST_CASE("routers with losses and biases, and top-2 gates, train the same bits") {
  for (const Precision precision : {Precision::kF64, Precision::kF32}) {
    for (const char* gate : {"switch", "top2", "expert_choice"}) {
      CAPTURE(gate, static_cast<int>(precision));
      Gpt2 model = small_model(gate, 4);
      model.layers = 4;
      model.fused_attention = precision == Precision::kF32;
      if (gate == std::string("top2")) model.k = 2;
      if (gate != std::string("expert_choice")) {
        model.balance_loss = {.coefficient = 0.01,
                              .count = BalanceLossSpec::Count::kKept,
                              .over = BalanceLossSpec::Over::kAll};
        model.bias_balance.rate = 0.01;
      }
      model.z_loss = 0.001;
      PlanSpec spec = spec_of(model, 2, precision);
      spec.system.stages = {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")};
      CHECK(same_run(train(spec, Recompute::kNone, precision),
                     train(spec, Recompute::kBlocks, precision)));
    }
  }
}

TEST_CASE("evaluation runs nothing again, and no op needs a measurement of its own") {
  PlanSpec spec = spec_of(small_model(), 2);
  const auto kept = make_plan(spec);
  spec.system.stages.push_back(pass("recompute"));
  const auto plan = make_plan(spec);
  RunOptions options = options_of(*plan, 1);
  options.train.eval_batches = 1;
  options.train.eval_data = options.data;
  CHECK(run_cpu(*plan, options).eval_loss == run_cpu(*kept, options).eval_loss);
  const auto signatures = [](const Graph& graph) {
    std::map<std::string, bool> all;
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      all[op_signature(graph, OpId(static_cast<int64_t>(i)))] = true;
    }
    return all;
  };
  CHECK(signatures(plan->graph) == signatures(kept->graph));
}

}  // namespace
}  // namespace moe::test
