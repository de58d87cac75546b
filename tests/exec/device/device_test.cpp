// Ranks on a device: the host's logic on a device that runs what it is given late, in any order
// that streams and events allow. The CPU's kernels compute, so the bits are those of CPU ranks.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// Every way to order the streams, every second one poisoned.
void check_on_device(const Plan& plan, RunOptions options) {
  const RunResult expected = run_cpu(plan, options);
  for (uint64_t i = 0; i < 5; ++i) {
    const auto order = static_cast<LazyOrder>(std::min<uint64_t>(i, 3));
    options.test.poison = i % 2 == 0;
    CAPTURE(i, static_cast<int>(order));
    CHECK(same_run(expected, run_lazy(plan, options, order, i)));
  }
}

RunOptions full_options(const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.train.keep_grad_norms = true;
  options.train.eval_batches = 1;
  options.train.eval_data = options.data;
  return options;
}

TEST_CASE("a device's ranks train as CPU ranks do, bit by bit, whatever its streams' timing") {
  const std::string gate = GENERATE("switch", "top2", "bpr", "expert_choice", "hash", "random");
  for (const int64_t ranks : {1, 2, 4}) {
    CAPTURE(gate, ranks);
    const auto plan = make_plan(spec_of(small_model(gate), ranks));
    check_on_device(*plan, full_options(*plan, 4));
  }
}

TEST_CASE("random legal schedules give the bits of the plain order on a device") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = GENERATE(0, 1) == 0 ? step_graph(spec_of(small_model("switch"), 2))
                                          : ragged_step_graph(spec_of(small_model("switch"), 2));
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, options_of(*plain, 2));
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_schedule(graph, rng));
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    const RunResult result = run_lazy(*plan, options, LazyOrder::kRandom, seed);
    CAPTURE(seed);
    CHECK(same_run(expected, result));
    for (const auto& rank : result.executed) REQUIRE(rank == plan->orders.lanes);
  }
}

TEST_CASE("all that a model may have trains on a device: biases, router losses, AdamW, groups") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {.coefficient = 0.5, .over = BalanceLossSpec::Over::kAll};
  model.z_loss = 0.25;
  model.bias_balance.rate = 0.01;
  PlanSpec routed = spec_of(model, 2);
  routed.optimizer = Adamw{.lr = 0.1};
  const auto plan = make_plan(routed);
  check_on_device(*plan, full_options(*plan, 3));

  Gpt2 unfused = small_model("switch", 2);
  unfused.fused_attention = false;
  unfused.ep = 2;
  PlanSpec groups = spec_of(unfused, 4);
  groups.system.sync.lane = ReduceLane::kOwn;
  groups.system.sync.bucket_bytes = 4096;
  const auto in_groups = plan_with(groups, {pass("irregular_a2a"), pass("used_rows")});
  check_on_device(*in_groups, full_options(*in_groups, 2));
}

TEST_CASE("lanes that choose while the step runs do so alike on all ranks, with the same bits") {
  const bool ragged = GENERATE(false, true);
  const PlanSpec spec = spec_of(small_model(ragged ? "bpr" : "switch"), 2);
  const Graph graph = ragged ? ragged_step_graph(spec) : step_graph(spec);
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, full_options(*plain, 2));
  int chosen = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_discipline(spec, graph, rng));
    RunOptions options = full_options(*plan, 2);
    options.test.poison = true;
    const auto order = static_cast<LazyOrder>(seed % 4);
    const RunResult result = run_lazy(*plan, options, order, seed);
    CHECK(same_run(expected, result));
    chosen += !arbiters(plan->schedule).empty();
    for (const Timeline& timeline : result.timelines) CHECK(take_turns(*plan, timeline));
  }
  CHECK(chosen > 10);
}

}  // namespace
}  // namespace moe::test
