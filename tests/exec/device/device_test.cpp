// Ranks on a device: the host's logic on a device that runs what it is given late, in any order
// that streams and events allow. The CPU's kernels compute, so the bits are those of CPU ranks.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

PlanSpec with(PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  return spec;
}

void check_same_training(const RunResult& device, const RunResult& cpu) {
  REQUIRE(device.losses == cpu.losses);
  REQUIRE(device.digest == cpu.digest);
  CHECK(device.param_projection == cpu.param_projection);
  CHECK(device.grad_projection == cpu.grad_projection);
  CHECK(device.eval_loss == cpu.eval_loss);
  REQUIRE(device.moe.size() == cpu.moe.size());
  for (size_t step = 0; step < cpu.moe.size(); ++step) {
    for (size_t layer = 0; layer < cpu.moe[step].size(); ++layer) {
      const MoeStats &a = device.moe[step][layer], &b = cpu.moe[step][layer];
      CAPTURE(step, layer);
      CHECK(a.checksum == b.checksum);
      CHECK(a.dropped == b.dropped);
      CHECK(a.counts == b.counts);
      CHECK(a.min_margin == b.min_margin);
      CHECK(a.balance_loss == b.balance_loss);
      CHECK(a.z_loss == b.z_loss);
    }
  }
}

/// Every way to order the streams.
void check_on_device(const Plan& plan, RunOptions options, int random_orders = 3) {
  const RunResult expected = run_cpu(plan, options);
  for (const bool poison : {false, true}) {
    options.test.poison = poison;
    for (const LazyOrder order :
         {LazyOrder::kAsGiven, LazyOrder::kFirstFirst, LazyOrder::kLastFirst}) {
      CAPTURE(poison, static_cast<int>(order));
      check_same_training(run_lazy(plan, options, order, 1), expected);
    }
    for (int seed = 1; seed <= random_orders; ++seed) {
      CAPTURE(poison, seed);
      check_same_training(run_lazy(plan, options, LazyOrder::kRandom, static_cast<uint64_t>(seed)),
                          expected);
    }
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
    check_on_device(*plan, full_options(*plan, 4), 1);
  }
}

TEST_CASE("systems of other transfers, rows and orders train on a device as on CPU ranks") {
  const std::vector<std::vector<Stage>> systems = {
      {pass("serial")},
      {pass("dw_schedule")},
      {pass("irregular_a2a")},
      {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")},
      {pass("capacity_pipeline", {{"degree", 2.0}}), pass("blocking_a2a")},
      {pass("irregular_a2a"), pass("used_rows"),
       pass("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 0.0}})},
      {pass("irregular_a2a"), pass("used_rows"),
       pass("partition", {{"parts", 3.0}, {"before", 6.0}, {"after", 1.0}}), pass("dw_schedule")},
  };
  const std::string gate = GENERATE("switch", "hash");
  for (const auto& stages : systems) {
    CAPTURE(gate, stages.size(), stages[0].name);
    const auto plan = make_plan(with(spec_of(small_model(gate, 4), 2), stages));
    check_on_device(*plan, full_options(*plan, 3), 2);
  }
}

TEST_CASE("rows without a capacity are packed on a device as on CPU ranks") {
  const std::vector<std::vector<Stage>> systems = {
      {},
      {pass("capacity_pipeline", {{"degree", 2.0}}), pass("dw_schedule")},
      {pass("partition", {{"parts", 2.0}, {"before", 2.0}, {"after", 0.0}})},
      {pass("partition", {{"parts", 2.0}, {"before", 0.0}, {"after", 0.0}})},
      {pass("prophet", {{"shadows", 1.0}}), pass("prophet_schedule")},
  };
  Gpt2 model = small_model(GENERATE("switch", "bpr"), 4);
  model.capacity_factor = 0;
  for (std::vector<Stage> stages : systems) {
    stages.insert(stages.begin(), {pass("irregular_a2a"), pass("used_rows")});
    CAPTURE(model.gate, stages.size(), stages.back().name);
    const auto plan = make_plan(with(spec_of(model, 2), stages));
    const auto& tensors = plan->graph.tensors();
    REQUIRE(std::any_of(tensors.begin(), tensors.end(),
                        [](const Tensor& t) { return t.stored_rows > 0; }));
    check_on_device(*plan, full_options(*plan, 3), 1);
  }
}

TEST_CASE("random legal schedules give the bits of the plain order on a device") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = GENERATE(0, 1) == 0 ? step_graph(spec_of(small_model("switch"), 2))
                                          : ragged_step_graph(spec_of(small_model("switch"), 2));
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, options_of(*plain, 2));
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_schedule(graph, rng));
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    const RunResult result = run_lazy(*plan, options, LazyOrder::kRandom, seed);
    CAPTURE(seed);
    check_same_training(result, expected);
    for (const auto& rank : result.executed) REQUIRE(rank == plan->orders.lanes);
  }
}

TEST_CASE("all that a model may have trains on a device: biases, router losses, AdamW, groups") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {0.5, "choices", true};
  model.z_loss = 0.25;
  model.bias_rate = 0.01;
  PlanSpec routed = spec_of(model, 2);
  routed.optimizer = Adamw{.lr = 0.1};
  const auto plan = make_plan(routed);
  check_on_device(*plan, full_options(*plan, 3), 2);

  Gpt2 unfused = small_model("switch", 2);
  unfused.fused_attention = false;
  unfused.ep = 2;
  PlanSpec groups = spec_of(unfused, 4);
  groups.system.sync.lane = ReduceLane::kOwn;
  groups.system.sync.bucket_bytes = 4096;
  const auto in_groups = make_plan(with(groups, {pass("irregular_a2a"), pass("used_rows")}));
  check_on_device(*in_groups, full_options(*in_groups, 2), 2);
}

TEST_CASE("PipeMoE's, FasterMoE's and the hierarchical transfers run on a device") {
  const Options lines = {
      {"alpha_a", 1e-9}, {"beta_a", 1e-6}, {"alpha_e", 1e-9}, {"beta_e", 1e-6}, {"degrees", "3"}};
  PlanSpec nodes = spec_of(small_model("switch"), 4);
  nodes.cluster.nodes = 2;
  nodes.cluster.devices_per_node = 2;
  for (const auto& stages : std::vector<std::vector<Stage>>{
           {pass("pipemoe", lines)},
           {pass("fastermoe_pipeline", {{"groups", 2.0}})},
           {pass("hierarchical_a2a")},
           {pass("irregular_a2a"), pass("used_rows"), pass("hierarchical_a2a")}}) {
    CAPTURE(stages[0].name);
    const auto plan = make_plan(with(nodes, stages));
    check_on_device(*plan, full_options(*plan, 2), 2);
  }
}

TEST_CASE("the reference model on a device has the bits of CPU ranks") {
  const auto plan = make_plan(spec_of(reference_model("switch", 2), 2));
  const RunOptions options = options_of(*plan, 2);
  check_same_training(run_lazy(*plan, options, LazyOrder::kRandom, 1), run_cpu(*plan, options));
}

/// Transfers of an arbiter follow each other, on all ranks in one order.
void check_turns(const Plan& plan, const Timeline& timeline) {
  for (const Arbiter& lanes : arbiters(plan.schedule)) {
    std::vector<std::vector<Span>> by_rank(static_cast<size_t>(plan.graph.num_ranks));
    for (const Span& s : timeline.spans) {
      if (std::find(lanes.begin(), lanes.end(), s.lane) == lanes.end()) continue;
      by_rank[static_cast<size_t>(s.rank)].push_back(s);
    }
    for (std::vector<Span>& mine : by_rank) {
      // One without rows takes no time.
      std::stable_sort(mine.begin(), mine.end(),
                       [](const Span& a, const Span& b) { return a.end < b.end; });
      REQUIRE(mine.size() == by_rank[0].size());
      for (size_t i = 0; i < mine.size(); ++i) {
        REQUIRE(mine[i].op == by_rank[0][i].op);
        REQUIRE(mine[i].chunk == by_rank[0][i].chunk);
        if (i > 0) REQUIRE(mine[i - 1].end <= mine[i].begin);
      }
    }
  }
}

TEST_CASE("lanes that choose while the step runs do so alike on all ranks, with the same bits") {
  const bool ragged = GENERATE(false, true);
  const PlanSpec spec = spec_of(small_model(ragged ? "bpr" : "switch"), 2);
  const Graph graph = ragged ? ragged_step_graph(spec) : step_graph(spec);
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, full_options(*plain, 2));
  int chosen = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_discipline(spec, graph, rng));
    RunOptions options = full_options(*plan, 2);
    options.test.poison = true;
    const auto order = static_cast<LazyOrder>(seed % 4);
    const RunResult result = run_lazy(*plan, options, order, seed);
    check_same_training(result, expected);
    chosen += !arbiters(plan->schedule).empty();
    for (const Timeline& timeline : result.timelines) check_turns(*plan, timeline);
  }
  CHECK(chosen > 10);
}

TEST_CASE("an all-reduce in chunks, between other transfers, has the same bits on a device") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  Schedule schedule = default_schedule(graph);
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (graph.def(op).collective != Collective::kNone) {
      schedule.set_chunk(graph, op, std::max<Bytes>(1, message_bytes(graph, op) / 3));
    }
  }
  const auto plan = make_plan_of(spec, graph, schedule);
  check_on_device(*plan, full_options(*plan, 2));
}

}  // namespace
}  // namespace moe::test
