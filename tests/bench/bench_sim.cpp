// Simulating imbalanced training: iterations of a 12-layer GPT-MoE on 32 devices whose ranks differ
// by a routing model; CPU time, medians over repeated runs, and the parts of it. And what a step of
// the system `prophet`, whose transfers of experts run while others do, costs by the number of
// devices, of layers and of steps.
// Usage: bench_sim [RUNS] [ITERATIONS] [SYSTEM [DEVICES]]; SYSTEM may be "pace", DEVICES is for it
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/plan.h"
#include "engine/routing/workload.h"
#include "engine/sim/simulator.h"
#include "engine/sim/step_replay.h"
#include "tests/bench/measure.h"
#include "tests/model/gpt2.h"

namespace {

using moe::bench::cpu_seconds;

moe::PlanSpec spec(int64_t moe_every, int64_t experts, const char* routing) {
  moe::PlanSpec s;
  s.num_ranks = 32;
  moe::test::change_model(s, [&](moe::test::Gpt2& m) {
    m.layers = 12;
    m.hidden = 1024;
    m.heads = 16;
    m.batch_per_device = 8;
    m.experts = experts;
    m.dtype = moe::DType::kF16;
    m.moe_every = moe_every;
  });
  s.cluster = moe::bench::gpu_cluster(4);
  s.work.slot_occupancy = 0.8;
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  if (routing != nullptr) {
    s.routing =
        std::make_shared<const moe::RoutingModel>(moe::workload(routing, {{"drift", 0.2}}, 1));
  }
  return s;
}

double median_s(int runs, const std::function<void()>& body) {
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) samples.push_back(cpu_seconds(body));
  return moe::bench::spread_of(samples).median;
}

moe::Stage stage(const char* name, moe::Options options = {}) {
  moe::Stage made;
  made.name = name;
  made.options = std::move(options);
  return made;
}

const char* only = nullptr;

void bench(const char* name, std::vector<moe::Stage> stages, bool own_lane, int64_t moe_every,
           int runs, int64_t iterations) {
  if (only != nullptr && std::string(only) != name) return;
  moe::PlanSpec s = spec(moe_every, 32, "zipf");
  using enum moe::ReduceLane;
  s.system = {name,
              std::move(stages),
              {.bucket_bytes = 25 << 20, .lane = own_lane ? kOwn : kWithAllToAlls}};
  const auto plan = moe::make_plan(s);
  moe::RunOptions options;
  options.steps = iterations;
  moe::RunResult result;
  const double all = median_s(runs, [&] { result = moe::make_simulator()->run(*plan, options); });
  double routing = 0, step = 0, replay = 0, sums = 0;
  moe::StepReplay steps(*plan);
  for (int64_t i = 0; i < iterations; ++i) {
    for (size_t l = 0; l < 12 / static_cast<size_t>(moe_every); ++l) {
      routing += cpu_seconds([&] {
        s.routing->loads({i, static_cast<int64_t>(l), 32, 8 * 512, 32, 1});
      });
    }
    step += cpu_seconds([&] { steps.set_step(i); });
    moe::Timeline timeline;
    replay += cpu_seconds([&] { timeline = steps.run(); });
    sums += cpu_seconds([&] { moe::metrics(plan->graph, timeline); });
  }
  std::vector<double> made;
  for (const moe::Metrics& m : result.metrics) made.push_back(moe::to_ms(m.makespan_ns));
  std::sort(made.begin(), made.end());
  fmt::print("{:22} {:5} {:7} {:8.3f} {:8.3f} {:8.3f} {:8.3f} {:8.3f} {:9.1f} {:9.1f}\n", name,
             plan->graph.num_ops(), result.timelines[0].spans.size(), all, routing, step - routing,
             replay, sums, made[made.size() / 2], made.back());
}

/// The known system `prophet` (scripts/moe/spec/system.lua), with `moe_layers` MoE layers among
/// twice as many blocks and one expert per device.
moe::PlanSpec prophet_spec(int64_t devices, int64_t moe_layers) {
  moe::PlanSpec s;
  s.num_ranks = devices;
  moe::test::change_model(s, [&](moe::test::Gpt2& m) {
    m.layers = 2 * moe_layers;
    m.hidden = 1024;
    m.heads = 16;
    m.batch_per_device = 8;
    m.experts = devices;
    m.dtype = moe::DType::kF16;
  });
  s.cluster = moe::bench::gpu_cluster(devices / 8);
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  s.routing = std::make_shared<const moe::RoutingModel>(
      moe::workload("zipf", {{"s", 1.2}, {"drift", 0.02}}, 1));
  s.system = {"prophet",
              {stage("prophet", {{"hidden", 1.0}, {"split", true}}), stage("prophet_schedule"),
               stage("blocking_a2a", {{"experts", false}})},
              {.bucket_bytes = 25 << 20, .lane = moe::ReduceLane::kOwn}};
  return s;
}

/// Prints the CPU time of `steps` steps (routing, placements and events) per step.
void pace(int runs, int64_t devices, int64_t moe_layers, int64_t steps) {
  const auto plan = moe::make_plan(prophet_spec(devices, moe_layers));
  double route = 0, replay = 0;
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) {
    moe::StepReplay step(*plan);
    double mine = 0;
    for (int64_t at = 0; at < steps; ++at) {
      const double set = cpu_seconds([&] { step.set_step(at); });
      const double run = cpu_seconds([&] { step.run(); });
      route += set, replay += run, mine += set + run;
    }
    samples.push_back(1e3 * mine / static_cast<double>(steps));
  }
  const moe::bench::Spread ms = moe::bench::spread_of(samples);
  const double parts = 1e3 / static_cast<double>(runs * steps);
  fmt::print("{:7} {:10} {:5} {:9.1f} [{:.1f}, {:.1f}] {:9.1f} {:9.1f}\n", devices, moe_layers,
             steps, ms.median, ms.low, ms.high, parts * route, parts * replay);
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const int64_t iterations = argc > 2 ? std::max(1, std::atoi(argv[2])) : 100;
  if (argc > 3) only = argv[3];
  fmt::print("{} iterations on 32 devices, 12 blocks; CPU seconds, medians of {} runs\n",
             iterations, runs);
  fmt::print("{:22} {:>5} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}\n", "system", "ops",
             "spans", "all", "routing", "loads", "replay", "metrics", "median ms", "worst ms");
  const std::vector<moe::Stage> counted = {stage("irregular_a2a"), stage("used_rows")};
  bench("padded, every 2nd", {stage("serial")}, false, 2, runs, iterations);
  bench("counted, every 2nd", counted, false, 2, runs, iterations);
  bench("counted, every", counted, false, 1, runs, iterations);
  std::vector<moe::Stage> lancet = counted;
  lancet.push_back(stage("partition", {{"max_parts", 4.0}, {"groups", 5.0}}));
  lancet.push_back(stage("dw_schedule"));
  bench("lancet, every 2nd", lancet, false, 2, runs, iterations);
  bench("counted, own lane", counted, true, 1, runs, iterations);
  if (only != nullptr && std::string(only) != "pace") return 0;
  fmt::print("\nprophet, CPU ms per step: median of {} runs, and its parts\n", runs);
  fmt::print("{:>7} {:>10} {:>5} {:>24} {:>9} {:>9}\n", "devices", "MoE layers", "steps", "all",
             "loads", "replay");
  if (argc > 4) return pace(runs, std::atoi(argv[4]), 2, 3), 0;
  for (const int64_t devices : {16, 32, 64, 128, 256, 512, 1024}) pace(runs, devices, 2, 3);
  for (const int64_t layers : {4, 8, 16}) pace(runs, 64, layers, 3);
  for (const int64_t steps : {1, 6, 12}) pace(runs, 64, 2, steps);
  return 0;
}
