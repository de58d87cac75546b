// Routing models: how long the loads of a step take, and what recording a run's routing costs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/exec/data.h"
#include "engine/exec/results/trace_record.h"
#include "engine/plan.h"
#include "engine/routing/workload.h"
#include "engine/run.h"
#include "tests/model/gpt2.h"

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// 12 MoE layers, 100 steps of 1,024 tokens per rank, an expert per rank.
void time_loads(const char* name, const moe::WorkloadOptions& options, int64_t ranks, int64_t k,
                int64_t steps) {
  const moe::RoutingModel routing = moe::workload(name, options, 1);
  moe::RoutingQuery q = {.ranks = ranks, .tokens = 1024, .experts = ranks, .k = k};
  const Clock::time_point begin = Clock::now();
  int64_t total = 0;
  for (q.step = 0; q.step < steps; ++q.step) {
    for (q.layer = 0; q.layer < 12; ++q.layer) total += routing.loads(q).total();
  }
  const double ms = ms_since(begin);
  fmt::print("{:44} {:5} ranks, k {}: {:8.1f} ms for {} steps, {:.2f} ns per choice\n",
             routing.name, ranks, k, ms, steps, ms * 1e6 / static_cast<double>(total));
}

// record_step alone, of records as the plan's gates make them, over the step's time.
void time_step_of_record(const moe::Plan& plan, double step_ms) {
  std::vector<std::unique_ptr<moe::GateRecord>> kept;
  std::vector<std::vector<const moe::GateRecord*>> records(
      static_cast<size_t>(plan.graph.num_ranks));
  for (auto& rank : records) {
    for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
      const moe::OpId op(static_cast<int64_t>(i));
      if (plan.graph.def(op).name != std::string_view("gate")) continue;
      kept.push_back(std::make_unique<moe::GateRecord>(plan.graph, op, moe::AssignmentCode()));
      rank.push_back(kept.back().get());
    }
  }
  moe::Trace trace;
  constexpr int kTurns = 1000;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kTurns; ++i) moe::record_step(trace, records);
  moe::finish_trace(trace, "bench");
  const double ms = ms_since(begin) / kTurns;
  fmt::print("  the record itself: {:.4f} ms per step, {:.3f}% of it\n", ms, 100 * ms / step_ms);
}

// A model of README size, run with and without a record in turns; the record's own time per step
// beside it, which the difference of two noisy medians cannot show.
void time_record(int64_t ranks) {
  moe::test::Gpt2 m;
  m.vocab = 512, m.layers = 4, m.hidden = 128, m.heads = 4, m.seq = 128;
  m.batch_per_device = 4, m.experts = 4;
  moe::PlanSpec s;
  s.num_ranks = ranks;
  moe::test::set_model(s, m);
  s.cluster.nodes = ranks;
  s.cluster.device = {"cpu", 1e11, 1e10, 1e10, 0, 0};
  s.cluster.intra = s.cluster.nic = {1e12, 0};
  s.system.name = "raf";
  s.cost = std::make_shared<moe::RooflineCost>(s.cluster, s.work);
  s.element_bytes = 4;
  const auto plan = moe::make_plan(s);
  moe::RunOptions o;
  o.steps = 5;
  o.data = moe::reference_data(m.vocab, m.batch_per_device, ranks, m.seq);
  std::vector<double> ms[2];
  double bytes = 0, write_ms = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const bool records = turn % 2 == 1;
    o.record = records ? std::make_shared<moe::Trace>() : nullptr;
    const Clock::time_point begin = Clock::now();
    moe::run(*plan, "cpu", o);
    ms[records].push_back(ms_since(begin) / static_cast<double>(o.steps));
    if (!records) continue;
    const Clock::time_point written = Clock::now();
    bytes = static_cast<double>(moe::trace_bytes(*o.record).size());
    write_ms = ms_since(written);
  }
  for (auto& list : ms) std::sort(list.begin(), list.end());
  fmt::print(
      "recording on {} ranks: step {:.3f} ms without ({:.3f}..{:.3f}), {:.3f} ms with "
      "({:.3f}..{:.3f}); making {:.0f} bytes of {} steps: {:.3f} ms\n",
      ranks, ms[0][1], ms[0][0], ms[0][2], ms[1][1], ms[1][0], ms[1][2], bytes, o.steps, write_ms);
  time_step_of_record(*plan, ms[0][1]);
}

}  // namespace

int main() {
  time_record(1);
  time_record(2);
  for (const moe::WorkloadDef& def : moe::workloads()) time_loads(def.name.c_str(), {}, 32, 1, 100);
  time_loads("zipf", {{"drift", 0.02}}, 32, 1, 100);
  time_loads("zipf", {}, 32, 2, 100);
  time_loads("markov", {{"rise", 0.1}}, 32, 1, 100);
  time_loads("zipf", {}, 1024, 1, 2);
  time_loads("zipf", {}, 1024, 8, 2);
}
