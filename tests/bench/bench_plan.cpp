// Planning and simulating a training step of GPT2-L-MoE on 64 GPUs: medians over repeated runs, the
// parts of planning, and how close the arena comes to the bytes that must be alive; and Lancet's
// optimisation of 24 and of 96 blocks, cold, from device data.
// Usage: bench_plan [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/graph/text.h"
#include "engine/plan.h"
#include "engine/replay/replay.h"
#include "tests/bench/measure.h"
#include "tests/model/gpt2.h"

namespace {

using moe::Nanoseconds;
using moe::bench::median_ms;

moe::PlanSpec spec(const moe::SystemSpec& system, int64_t layers = 24) {
  moe::PlanSpec s;
  s.num_ranks = 64;
  moe::test::change_model(s, [&](moe::test::Gpt2& m) {
    m.layers = layers;
    m.hidden = 1024;
    m.heads = 16;
    m.batch_per_device = 8;
    m.experts = 128;
    m.fused_attention = false;
    m.dtype = moe::DType::kF16;
  });
  s.cluster = moe::bench::gpu_cluster(8);
  s.system = system;
  s.work.slot_occupancy = 0.8;
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  return s;
}

void bench(const moe::SystemSpec& system, int runs) {
  const moe::PlanSpec s = spec(system);
  std::shared_ptr<const moe::Plan> plan;
  const double plan_ms = median_ms(runs, [&] { plan = moe::make_plan(s); });
  const moe::Plan& p = *plan;
  Nanoseconds end = 0;
  const double simulate_ms = median_ms(runs, [&] {
    const moe::Timeline timeline = moe::replay(
        {.graph = p.graph,
         .schedule = p.schedule,
         .orders = p.orders,
         .duration_ns = [&](moe::OpId op, int32_t) { return s.cost->op_ns(p.graph, op); }});
    for (const moe::Span& span : timeline.spans) end = std::max(end, span.end);
  });
  const double orders_ms = median_ms(runs, [&] { moe::lane_orders(p.graph, p.schedule); });
  const double waits_ms =
      median_ms(runs, [&] { moe::cross_lane_waits(p.graph, p.schedule, p.orders); });
  const double memory_ms =
      median_ms(runs, [&] { moe::plan_memory(p.graph, p.schedule, p.orders); });
  const double legal_ms = median_ms(runs, [&] {
    moe::check_legal(p.graph, p.schedule, {&p.orders, 1}, p.memory);
  });
  const double print_ms = median_ms(runs, [&] { moe::print(p.graph); });
  Nanoseconds stages_ns = 0;
  for (const moe::StageReport& stage : p.stages) stages_ns += stage.took_ns;
  fmt::print(
      "{:10} {:5} {:7} {:8.1f} {:8.2f} {:7.1f} {:7.2f} {:6.2f} {:7.2f} {:6.2f} {:6.2f} "
      "{:8.1f} {:6.3f}\n",
      system.name, p.graph.num_ops(), p.graph.tensors().size(), plan_ms, simulate_ms,
      moe::to_ms(stages_ns), orders_ms, waits_ms, memory_ms, legal_ms, print_ms, moe::to_ms(end),
      static_cast<double>(p.memory.arena_bytes) / static_cast<double>(p.memory.liveness_bytes));
}

moe::Stage stage(const char* name, moe::Options options = {}) {
  moe::Stage made;
  made.name = name;
  made.options = std::move(options);
  return made;
}

/// Every make_plan() starts from nothing: no P, no axis problem is kept from the run before.
void bench_lancet(int64_t layers, double groups, int runs) {
  moe::PlanSpec s =
      spec({"lancet",
            {stage("irregular_a2a"), stage("used_rows"),
             stage("partition", {{"max_parts", 8.0}, {"groups", groups}}), stage("dw_schedule")},
            {}},
           layers);
  std::shared_ptr<const moe::Plan> plan;
  const double plan_ms = median_ms(runs, [&] { plan = moe::make_plan(s); });
  fmt::print("{} blocks, {} groups between MoE layers: {:.1f} ms\n", layers,
             groups == 0 ? "all ops as" : fmt::format("{:g}", groups), plan_ms);
  for (const moe::StageReport& report : plan->stages) {
    fmt::print("  {:14} {:8.1f} ms\n", report.name, moe::to_ms(report.took_ns));
  }
  for (const moe::Decision& d : plan->schedule.log) {
    if (d.op == "partition") fmt::print("  {}\n", d.why);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 11;
  fmt::print("GPT2-L-MoE, 24 blocks, 64 GPUs; median ms of {} runs\n", runs);
  fmt::print("{:10} {:>5} {:>7} {:>8} {:>8} {:>7} {:>7} {:>6} {:>7} {:>6} {:>6} {:>8} {:>6}\n",
             "system", "ops", "tensors", "plan", "simulate", "stages", "orders", "waits", "memory",
             "legal", "text", "step", "arena");
  const moe::GradientSync own_lane = {.lane = moe::ReduceLane::kOwn};
  const auto cut = [](double degree) { return stage("capacity_pipeline", {{"degree", degree}}); };
  bench({"raf", {stage("serial")}, {}}, runs);
  bench({"deepspeed", {stage("blocking_a2a")}, own_lane}, runs);
  bench({"tutel-2", {cut(2)}, own_lane}, runs);
  bench({"tutel-8", {cut(8)}, own_lane}, runs);
  bench({"lancet-dw", {stage("irregular_a2a"), stage("used_rows"), stage("dw_schedule")}, {}},
        runs);
  bench({"mix-8", {cut(8), stage("dw_schedule")}, own_lane}, runs);
  fmt::print("\nLancet, rho 8, all passes, one core; median of {} runs\n", runs);
  bench_lancet(24, 5, runs);
  bench_lancet(96, 5, runs);
  bench_lancet(24, 0, std::min(runs, 3));
  return 0;
}
