// How far a step predicted from ops timed alone is from the step executed: by kind of op, and the
// whole step through the simulator, on CPU ranks with an emulated link.
// Usage: bench_profile [ranks] [hidden] [seq] [vocab] [layers] [workload] (defaults 2 128 64 512 4)
// With a workload (routing/workload.h) ranks differ, as the counted rows and transfers say.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/data.h"
#include "engine/plan.h"
#include "engine/profile/profiler.h"
#include "engine/routing/workload.h"
#include "engine/run.h"
#include "tests/model/gpt2.h"

namespace {

using moe::Graph;
using moe::Nanoseconds;
using moe::OpId;

constexpr int64_t kSteps = 41, kWarmUpSteps = 5;

struct Sums {
  int64_t ops = 0;
  Nanoseconds predicted = 0, executed = 0;
};

std::shared_ptr<const moe::Plan> plan_of(const moe::test::Gpt2& model, int64_t ranks,
                                         const char* workload) {
  moe::PlanSpec spec;
  spec.num_ranks = ranks;
  moe::test::set_model(spec, model);
  spec.element_bytes = sizeof(float);
  spec.cluster.devices_per_node = ranks;
  spec.cluster.device = {"cpu", 1e11, 1e10, 1e10, 0, 0};
  spec.cluster.intra = spec.cluster.nic = {.bytes_per_s = 2e9, .latency_ns = 20'000};
  moe::ProfileOptions profile = {.ranks_beside = ranks};
  spec.work.slot_occupancy = 1 / model.capacity_factor;
  spec.cost = std::make_shared<moe::ProfileCost>(
      std::make_shared<moe::ProfileCache>(""), moe::profile_key(profile),
      [=](const Graph& graph, OpId op, const moe::WorkContext& work) mutable {
        profile.work = work;
        return moe::profile_op(graph, op, profile);
      },
      &spec.cluster, spec.work);
  if (workload != nullptr) {
    spec.routing = std::make_shared<const moe::RoutingModel>(moe::workload(workload, {}, 1));
    moe::test::set_model(spec, model,
                         moe::gate_spec(model, moe::routed_gate(spec.routing, model, {}, ranks)));
    spec.system.stages.resize(2);
    spec.system.stages[0].name = "irregular_a2a";
    spec.system.stages[1].name = "used_rows";
    return moe::make_plan(std::move(spec));
  }
  Graph graph = moe::test::build_forward(model, spec.gate, ranks);
  moe::add_backward_and_update(graph, spec.optimizer, {});
  moe::Schedule schedule = moe::default_schedule(graph);
  return moe::make_plan_of(std::move(spec), std::move(graph), std::move(schedule));
}

/// Durations of each op on rank 0 in the steps after the warm-up.
std::vector<std::vector<Nanoseconds>> durations(const moe::Plan& plan, const moe::RunResult& run) {
  std::vector<std::vector<Nanoseconds>> of(plan.graph.num_ops());
  for (size_t step = kWarmUpSteps; step < run.timelines.size(); ++step) {
    for (const moe::Span& span : run.timelines[step].spans) {
      if (span.rank == 0) of[span.op.index()].push_back(span.end - span.begin);
    }
  }
  return of;
}

void print_row(const std::string& name, const Sums& s) {
  fmt::print("{:<20}{:>5}{:>14.1f}{:>14.1f}{:>+9.1f}%\n", name, s.ops,
             static_cast<double>(s.predicted) / 1e3, static_cast<double>(s.executed) / 1e3,
             100.0 * (static_cast<double>(s.predicted) / static_cast<double>(s.executed) - 1));
}

void print_kinds(const moe::Plan& plan, const moe::RunResult& run) {
  fmt::print("{:<20}{:>5}{:>14}{:>14}{:>10}\n", "compute op", "n", "predicted us", "executed us",
             "error");
  const auto executed = durations(plan, run);
  std::map<std::string, Sums> kinds;
  Sums all;
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const moe::OpDef& def = plan.graph.def(op);
    if (def.collective != moe::Collective::kNone) continue;
    for (Sums* s : {&kinds[def.name], &all}) {
      s->ops += 1;
      s->predicted += plan.spec.cost->op_ns(plan.graph, op);
      s->executed += moe::median(executed[i]);
    }
  }
  for (const auto& [kind, sums] : kinds) print_row(kind, sums);
  print_row("all compute", all);
}

int64_t argument(int argc, char** argv, int i, int64_t default_value) {
  return i < argc ? std::atoll(argv[i]) : default_value;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t ranks = argument(argc, argv, 1, 2);
  moe::test::Gpt2 model;
  model.hidden = argument(argc, argv, 2, 128);
  model.seq = argument(argc, argv, 3, 64);
  model.vocab = argument(argc, argv, 4, 512);
  model.layers = argument(argc, argv, 5, 4);
  model.heads = 4, model.batch_per_device = 4, model.experts = 4;
  const auto plan = plan_of(model, ranks, argc > 6 ? argv[6] : nullptr);
  // The prediction is made before anything is executed.
  const Nanoseconds start = moe::clock_ns();
  moe::RunOptions options;
  options.steps = kSteps;
  const std::vector<moe::Metrics> predicted = moe::run(*plan, "simulate", options).metrics;
  fmt::print("{}\n", plan->spec.cost->describe());
  fmt::print("profiled in {:.1f} s\n\n", static_cast<double>(moe::clock_ns() - start) / 1e9);
  options.emulate_link = true;
  options.check_finite = false;
  options.data = moe::reference_data(model.vocab, model.batch_per_device, ranks, model.seq);
  const moe::RunResult run = moe::run(*plan, "cpu", options);
  print_kinds(*plan, run);
  const auto median_of = [&](const std::vector<moe::Metrics>& all,
                             Nanoseconds moe::Metrics::*what) {
    std::vector<Nanoseconds> samples;
    const size_t first = all.size() == 1 ? 0 : kWarmUpSteps;  // one stands for all
    for (size_t s = first; s < all.size(); ++s) samples.push_back(all[s].*what);
    return moe::median(samples);
  };
  const auto print = [&](const char* name, Nanoseconds moe::Metrics::*what) {
    print_row(name,
              {kSteps - kWarmUpSteps, median_of(predicted, what), median_of(run.metrics, what)});
  };
  fmt::print("\n");
  print("whole step", &moe::Metrics::makespan_ns);
  print("compute", &moe::Metrics::compute_ns);
  print("busiest rank", &moe::Metrics::busiest_compute_ns);
  print("waiting", &moe::Metrics::wait_ns);
  return 0;
}
