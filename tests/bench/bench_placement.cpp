// Placement policies: how long a plan takes, by the number of devices and experts, and how far the
// greedy planner stays behind the best of all sets of copies where these can all be tried; and how
// long it takes until all layers of a model have a new placement in force.
// Usage: bench_placement [RUNS]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "engine/comm/communicator.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/placed.h"
#include "engine/placement/prophet.h"
#include "engine/placement/ultraep.h"
#include "engine/plan.h"
#include "engine/routing/workload.h"
#include "engine/sim/step_replay.h"
#include "tests/model/gpt2.h"
#include "tests/placement/fixture.h"

namespace {

struct Spread {
  double median = 0, lo = 0, hi = 0;  // lo, hi: a tenth of the samples lies below, above
};

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double part) {
    return samples[static_cast<size_t>(part * static_cast<double>(samples.size() - 1))];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Spread time_us(int runs, const std::function<void()>& body) {
  std::vector<double> samples;
  for (int i = 0; i < runs; ++i) {
    const moe::Nanoseconds begin = moe::clock_ns();
    body();
    samples.push_back(static_cast<double>(moe::clock_ns() - begin) / 1e3);
  }
  return spread_of(samples);
}

// Copies cost little, so that the search is long.
constexpr moe::PlacementRates kRates{.input_bytes = 2048,
                                     .expert_bytes = 1e5,
                                     .state_bytes = 2e5,
                                     .a2a_bytes_per_s = 5e9,
                                     .copy_bytes_per_s = 5e9,
                                     .inputs_per_s = 5e6};

void bench_search(int runs, int64_t devices, int64_t experts) {
  const moe::ExpertCounts loads = moe::test::skewed_loads(devices, experts, 1);
  const auto owners = moe::test::owners_in_order(experts, devices);
  for (const double alpha : {1.0, 0.0}) {
    moe::ProphetPlan plan;
    const Spread us =
        time_us(runs, [&] { plan = moe::plan_prophet(loads, owners, kRates, {.alpha = alpha}); });
    fmt::print("{:8} {:8} {:6} {:10.1f} {:10.1f} {:10.1f} {:10}\n", devices, experts, alpha,
               us.median, us.lo, us.hi, plan.selected.size());
  }
}

void bench_policy(int runs, const moe::PlacementPolicy& policy, int64_t devices) {
  const moe::ExpertCounts loads = moe::test::skewed_loads(devices, devices * 2, 1);
  const moe::Placement now({.experts = 2 * devices,
                            .devices = devices,
                            .residents = 3,
                            .shadows = 8,
                            .weighted = policy.defaults.weighted});
  const moe::PolicyOptions options = moe::resolved(policy, {});
  const Spread us =
      time_us(runs, [&] { policy.place({.loads = loads, .now = now, .rates = kRates}, options); });
  fmt::print("{:20} {:8} {:10.1f} {:10.1f} {:10.1f}\n", policy.name, devices, us.median, us.lo,
             us.hi);
}

// UltraEP's published setting: 256 experts on 64 devices with 2 slots for copies, top-8 of 8,192
// tokens each, at the three imbalances of its figures.
void bench_ultraep(int runs, double max_over_mean) {
  const moe::RoutingModel zipf = moe::workload("zipf", {{"max_over_mean", max_over_mean}}, 1);
  const moe::ExpertCounts loads = zipf.loads({.ranks = 64, .tokens = 8192, .experts = 256, .k = 8});
  const auto owners = moe::test::owners_in_order(256, 64);
  moe::UltraEpPlan plan;
  const Spread search = time_us(runs, [&] { plan = moe::plan_ultraep(loads, owners, 2, {}); });
  const moe::PlacementPolicy& policy = moe::builtin_policy("ultraep");
  const moe::Placement now(
      {.experts = 256, .devices = 64, .residents = 4, .shadows = 2, .weighted = true});
  const moe::PolicyOptions options = moe::resolved(policy, {});
  const Spread whole = time_us(runs, [&] { policy.place({.loads = loads, .now = now}, options); });
  fmt::print("{:8} {:10.1f} {:10.1f} {:10.1f} {:12.1f} {:8} {:10.4f}\n", max_over_mean,
             search.median, search.lo, search.hi, whole.median, plan.copies.size(),
             static_cast<double>(plan.threshold) * 64 / static_cast<double>(loads.total()));
}

void gap(int64_t devices, int64_t n, moe::TimeEquation equation) {
  constexpr int kSets = 400;
  std::vector<double> percents;
  int best = 0;
  for (int seed = 0; seed < kSets; ++seed) {
    const moe::ExpertCounts loads =
        moe::test::skewed_loads(devices, devices, static_cast<uint64_t>(seed));
    const moe::PlacementRates rates = moe::test::random_rates(static_cast<uint64_t>(seed));
    const auto owners = moe::test::owners_in_order(devices, devices);
    const double least = moe::test::exhaustive_s(loads, owners, rates, equation);
    if (least <= 0) continue;
    const double time_s =
        moe::plan_prophet(loads, owners, rates, {.alpha = 0, .n = n, .equation = equation}).time_s;
    percents.push_back(100 * (time_s / least - 1));
    best += time_s <= least * (1 + 1e-12) ? 1 : 0;
  }
  const Spread percent = spread_of(percents);
  fmt::print("{:8} {:>5} {:9} {:10.2f} {:10.2f} {:10.2f} {:9} of {}\n", devices,
             n < 0 ? "auto" : fmt::to_string(n), static_cast<int>(equation), percent.median,
             percent.hi, *std::max_element(percents.begin(), percents.end()), best,
             percents.size());
}

constexpr int64_t kLayers = 24, kTokens = 4096;

/// GPT with an MoE layer in each of 24 blocks, an expert per device, on nodes of 8 at assumed
/// rates.
moe::PlanSpec model_spec(int64_t devices, bool placed) {
  moe::PlanSpec s;
  s.num_ranks = devices;
  moe::test::change_model(s, [&](moe::test::Gpt2& m) {
    m.layers = kLayers;
    m.moe_every = 1;
    m.experts = devices;
    m.hidden = 1024;
    m.heads = 16;
    m.batch_per_device = kTokens / m.seq;
    m.dtype = moe::DType::kF16;
  });
  s.cluster.nodes = devices / 8, s.cluster.devices_per_node = 8, s.cluster.nics_per_node = 4;
  s.cluster.device = {.gemm_flops_per_s = 140e12,
                      .vector_flops_per_s = 15e12,
                      .memory_bytes_per_s = 1.6e12,
                      .launch_ns = 8000};
  s.cluster.intra = {300e9, 1000}, s.cluster.nic = {12.5e9, 2500};
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  s.routing = std::make_shared<const moe::RoutingModel>(
      moe::workload("zipf", {{"s", 1.1}, {"drift", 0.05}}, 1));
  moe::Stage prophet, schedule;
  prophet.name = "prophet", schedule.name = "prophet_schedule";
  prophet.options = {{"hidden", 1.0}};
  if (placed) s.system = {"placed", {prophet, schedule}, {.bucket_bytes = 25 << 20}};
  return s;
}

std::vector<moe::ExpertCounts> loads_of(const moe::PlanSpec& s, int64_t step) {
  std::vector<moe::ExpertCounts> out;
  for (int64_t l = 0; l < kLayers; ++l) {
    out.push_back(s.routing->loads({step, l, s.num_ranks, kTokens, s.num_ranks, 1}));
  }
  return out;
}

/// What one rank runs in a step from gathered loads on: the place and commit ops of all layers, as
/// their lane runs them, and a first reading of each placement.
class RankStep {
 public:
  RankStep(const moe::Plan& plan, const std::vector<moe::ExpertCounts>& loads)
      : graph_(plan.graph) {
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const moe::OpId id(static_cast<int64_t>(i));
      if (graph_.removed(id) || graph_.def(id).name != std::string_view("place")) continue;
      const auto layer = static_cast<size_t>(moe::attr_int(graph_.op(id), "layer_number"));
      const moe::PlacementBounds bounds = moe::ops::bounds_of(graph_.op(id));
      const moe::Placement first(bounds);
      layers_.push_back({id, bounds, {}, {first.codes().begin(), first.codes().end()}, {}});
      Layer& made = layers_.back();
      made.loads.assign(loads[layer].rows.begin(), loads[layer].rows.end());
      made.next = made.now;
    }
  }
  void run() {
    for (Layer& layer : layers_) {
      void* const inputs[] = {layer.loads.data(), layer.now.data()};
      void* const outputs[] = {layer.next.data()};
      call(layer.op, inputs, outputs);
      std::copy(layer.next.begin(), layer.next.end(), layer.now.begin());  // as commit does
      moe::Placement::decode(layer.bounds, layer.now);
    }
  }
  size_t num_layers() const { return layers_.size(); }

 private:
  struct Layer {
    moe::OpId op;
    moe::PlacementBounds bounds;
    std::vector<int32_t> loads, now, next;
  };
  void call(moe::OpId op, std::span<void* const> inputs, std::span<void* const> outputs) const {
    const moe::RankContext rank;
    graph_.def(op).run_f32(
        {graph_, graph_.op(op), inputs, outputs, nullptr, moe::kernels::fast_table(), rank});
  }

  const moe::Graph& graph_;
  std::vector<Layer> layers_;
};

/// Of a step in the simulator without the routing model's own time, us.
Spread simulated_us(int runs, const moe::Plan& plan) {
  moe::StepReplay steps(plan);
  std::vector<double> samples;
  for (int i = 0; i <= runs; ++i) {
    const moe::Nanoseconds begin = moe::clock_ns();
    loads_of(plan.spec, i);
    const moe::Nanoseconds routing = moe::clock_ns();
    steps.set_step(i);
    if (i > 0)
      samples.push_back(static_cast<double>(moe::clock_ns() - routing - (routing - begin)) / 1e3);
  }
  return spread_of(samples);
}

void bench_model(int runs, int64_t devices) {
  const auto placed = make_plan(model_spec(devices, true));
  RankStep step(*placed, loads_of(placed->spec, 1));
  const Spread rank = time_us(runs, [&] { step.run(); });
  const Spread with = simulated_us(runs, *placed);
  const Spread without = simulated_us(runs, *make_plan(model_spec(devices, false)));
  fmt::print("{:8} {:8} {:10.1f} {:10.1f} {:10.1f} {:12.1f} {:12.1f}\n", step.num_layers(), devices,
             rank.median, rank.lo, rank.hi, with.median, without.median);
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::max(3, std::atoi(argv[1])) : 51;
  fmt::print("Pro-Prophet's search alone, us of {} runs\n", runs);
  fmt::print("{:>8} {:>8} {:>6} {:>10} {:>10} {:>10} {:>10}\n", "devices", "experts", "alpha",
             "median", "10%", "90%", "selected");
  for (const int64_t devices : {16, 64, 512}) bench_search(runs, devices, devices);
  bench_search(runs, 64, 256);

  fmt::print("\nPolicies as a step calls them, two experts per device, us of {} runs\n", runs);
  fmt::print("{:20} {:>8} {:>10} {:>10} {:>10}\n", "", "devices", "median", "10%", "90%");
  for (const moe::PlacementPolicy& policy : moe::builtin_policies()) {
    for (const int64_t devices : {16, 64}) bench_policy(runs, policy, devices);
  }

  fmt::print("\nUltraEP's plan, 256 experts on 64 devices, us of {} runs\n", runs);
  fmt::print("{:>8} {:>10} {:>10} {:>10} {:>12} {:>8} {:>10}\n", "before", "search", "10%", "90%",
             "whole policy", "replicas", "after");
  for (const double before : {1.51, 2.01, 3.03}) bench_ultraep(runs, before);

  fmt::print("\nprophet for a whole model, from gathered loads to placements in force, us of {}\n",
             runs);
  fmt::print("{:>8} {:>8} {:>10} {:>10} {:>10} {:>12} {:>12}\n", "layers", "experts", "a rank",
             "10%", "90%", "simulator", "not placed");
  for (const int64_t devices : {16, 64}) bench_model(runs, devices);

  fmt::print("\nGreedy over the best set of copies, % of the layer's time by the model\n");
  fmt::print("{:>8} {:>5} {:>9} {:>10} {:>10} {:>10} {:>9}\n", "devices", "n", "equation", "median",
             "90%", "worst", "best");
  for (const auto equation : {moe::TimeEquation::kBlocking, moe::TimeEquation::kHidden}) {
    for (const int64_t devices : {3, 4}) {
      for (const int64_t n : {-1, 0, 1}) gap(devices, n, equation);
    }
  }
  return 0;
}
