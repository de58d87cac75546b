// Training with blocks whose activations are made again (recompute = "blocks"), executed: the same
// bits as with activations that are kept.
#include <catch2/catch.hpp>
#include <map>

#include "engine/cost/cost_model.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

struct System {
  const char* name;
  std::vector<Stage> stages;
  bool takes_nodes = false;  // needs nodes of several ranks
};

std::vector<System> systems() {
  const Stage irregular = pass("irregular_a2a"), rows = pass("used_rows");
  const Stage cut = pass("capacity_pipeline", {{"degree", 2.0}});
  const Stage micro_ops = pass("micro_ops", {{"bytes", 1500.0}});
  const Stage parts = pass("partition", {{"parts", 2.0}});
  const Stage dw = pass("dw_schedule", {{"if_slower", std::string("keep")}});
  return {{"raf", {pass("serial")}},
          {"raf_irregular", {irregular, pass("serial")}},
          {"deepspeed", {pass("blocking_a2a")}},
          {"tutel", {cut}},
          {"pipemoe", {pass("pipemoe")}},
          {"lancet", {irregular, rows, parts, dw}},
          {"lancet padded", {parts, dw}},
          {"lina", {pass("priority"), pass("chunked", {{"bytes", 700.0}}), micro_ops}},
          {"lina_fixed", {pass("fixed")}},
          {"fastermoe", {pass("fastermoe_pipeline")}},
          {"prophet", {pass("prophet"), pass("prophet_schedule")}},
          {"eplb", {pass("eplb", {{"every", 1.0}}), pass("serial")}},
          {"swap", {pass("swap", {{"every", 1.0}}), pass("serial")}},
          {"hierarchical", {irregular, rows, cut, pass("hierarchical_a2a")}, true}};
}

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

void check_same_bits(const RunResult& kept, const RunResult& again) {
  CHECK(again.losses == kept.losses);
  CHECK(again.digest == kept.digest);
  CHECK(again.grad_l2 == kept.grad_l2);
  CHECK(again.grad_projection == kept.grad_projection);
  REQUIRE(again.moe.size() == kept.moe.size());
  for (size_t step = 0; step < kept.moe.size(); ++step) {
    REQUIRE(again.moe[step].size() == kept.moe[step].size());
    for (size_t layer = 0; layer < kept.moe[step].size(); ++layer) {
      const MoeStats &a = kept.moe[step][layer], &b = again.moe[step][layer];
      CHECK((a.checksum == b.checksum && a.dropped == b.dropped && a.counts == b.counts));
      CHECK((a.balance_loss == b.balance_loss && a.z_loss == b.z_loss));
    }
  }
}

TEST_CASE("every system trains the same bits with blocks that run again, on less memory") {
  for (const int64_t ranks : {1, 2, 4}) {
    for (const System& system : systems()) {
      if (system.takes_nodes && ranks < 4) continue;
      for (const double capacity_factor : {1.0, 0.0}) {
        CAPTURE(system.name, ranks, capacity_factor);
        Gpt2 model = small_model("switch", 3);
        model.layers = 6;
        model.seq = 32;
        model.experts = 8;
        model.capacity_factor = capacity_factor;
        PlanSpec spec = spec_of(model, ranks);
        if (ranks == 4) spec.cluster.nodes = spec.cluster.devices_per_node = 2;
        spec.system.stages = system.stages;
        spec.system.sync = {.place = ReducePlace::kReady, .lane = ReduceLane::kOwn};
        const RunResult kept = train(spec, Recompute::kNone, Precision::kF32);
        const RunResult again = train(spec, Recompute::kBlocks, Precision::kF32);
        check_same_bits(kept, again);
        CHECK(again.peak_bytes < kept.peak_bytes);
      }
    }
  }
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
        model.balance_loss = {.coefficient = 0.01, .count = "kept", .over_all = true};
        model.bias_rate = 0.01;
      }
      model.z_loss = 0.001;
      PlanSpec spec = spec_of(model, 2, precision);
      spec.system.stages = {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")};
      check_same_bits(train(spec, Recompute::kNone, precision),
                      train(spec, Recompute::kBlocks, precision));
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
