// Lanes that choose their next transfer while the step runs, of one rank per process: rank 0
// chooses for all. The same bits as ranks that are threads, one order of transfers, or a clear end.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "tests/exec/support.h"
#include "tests/job/programs/ranks.h"

namespace moe::test {
namespace {

/// Lina's scheduler: all-to-alls first, all-reduces in chunks on a lane that shares their network,
/// micro-ops.
PlanSpec lina(int64_t num_ranks) {
  PlanSpec spec = spec_of(small_model("switch", 2), num_ranks);
  spec.system.sync.lane = ReduceLane::kOwn;
  spec.system.sync.bucket_bytes = 0;
  spec.system.stages = {{.name = "priority"},
                        {.name = "chunked", .options = {{"bytes", 1024.0}}},
                        {.name = "micro_ops", .options = {{"bytes", 2048.0}}}};
  return spec;
}

RunOptions options_for(const Plan& plan, uint64_t seed) {
  RunOptions options = options_of(plan, 3);
  options.timeout_s = 20;
  options.train.keep_grad_norms = true;
  options.train.eval_batches = 1;
  options.train.eval_data = options.data;
  options.test.poison = true;
  options.test.delay_ns = random_delays(seed);
  return options;
}

void expect_same(Processes& p, const Plan& plan, const RunResult& apart, const RunResult& all) {
  const SameRun same = same_run(all, apart);
  expect(p, apart.losses.size() == 3, "losses");
  expect(p, bool(same), "the same run: " + same.differences);
  for (const auto& rank : apart.executed) {
    expect(p, rank == apart.executed[0], "the same ops on all lanes of all ranks");
  }
  for (const Timeline& timeline : apart.timelines) {
    expect(p, take_turns(plan, timeline), "one transfer at a time, the same on all ranks");
  }
}

/// Picks at random, and counts the calls.
std::function<Choose(LaneId)> random_policy(uint64_t seed, int64_t& calls) {
  return [&calls, rng = std::make_shared<Rng>(seed)](LaneId) -> Choose {
    return [&calls, rng](std::span<const OpId> ready) {
      ++calls;
      return ready[static_cast<size_t>(rng->below(static_cast<int64_t>(ready.size())))];
    };
  };
}

/// Returns how often the policy was asked.
int64_t check_turns(Processes& processes, const Plan& plan, uint64_t seed) {
  RunOptions options = options_for(plan, seed);
  int64_t calls = 0;
  options.policies.choose = random_policy(seed, calls);
  options.processes = &processes;
  const RunResult apart = run_cpu(plan, options);
  expect(processes, processes.is_root() || calls == 0, "rank 0 alone chooses");
  options.processes = nullptr;
  const int64_t asked = calls;
  if (processes.is_root()) expect_same(processes, plan, apart, run_cpu(plan, options));
  return asked;
}

void turns(Processes& processes) {
  const int64_t n = processes.size();
  const auto plan = make_plan(lina(n));
  expect(processes, arbiters(plan->schedule).size() == 1 && arbiters(plan->schedule)[0].size() == 2,
         "two lanes share a network");
  check_turns(processes, *plan, 1);
  const PlanSpec spec = spec_of(small_model("switch", 2), n);
  int64_t asked = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Graph graph = seed % 2 == 0 ? step_graph(spec) : ragged_step_graph(spec);
    Rng rng(seed);
    asked += check_turns(processes, *make_plan_of(spec, graph, random_discipline(spec, graph, rng)),
                         seed);
  }
  expect(processes, asked > 50 || !processes.is_root(), "policies were asked");
}

/// Two steps on a lane that picks by this policy.
void run_with(Processes& processes, const Choose& choose,
              const std::function<void(RunOptions&)>& change) {
  const PlanSpec spec = spec_of(small_model("switch", 2), processes.size());
  const Graph graph = step_graph(spec);
  Schedule schedule = default_schedule(graph);
  schedule.set_pick(LaneId(1), choose ? Pick::kPolicy : Pick::kPriority, "mine", choose);
  const auto plan = make_plan_of(spec, graph, schedule);
  RunOptions options = options_of(*plan, 1'000'000);
  options.timeout_s = 20;
  change(options);
  options.processes = &processes;
  run_cpu(*plan, options);
}

void turns_fail(Processes& processes) {
  run_with(
      processes, [](auto) -> OpId { throw run_error("policy 'x': too slow"); }, [](RunOptions&) {});
}

void late_by(Processes& processes, int64_t late) {
  const Graph graph = step_graph(spec_of(small_model("switch", 2), processes.size()));
  run_with(processes, nullptr, [&](RunOptions& options) {
    options.timeout_s = 0.7;
    options.test.delay_ns = [late, op = graph.find_op("b1.moe.gate")](int64_t rank, OpId at,
                                                                      int64_t step) -> Nanoseconds {
      return rank == late && at == op && step == 2 ? 3'000'000'000 : 0;
    };
  });
}
void turns_never_posted(Processes& processes) {
  late_by(processes, 1);
}
void turns_leader_never_posts(Processes& processes) {
  late_by(processes, 0);
}

void ends_in_step(Processes& processes, int signal) {
  const Graph graph = step_graph(spec_of(small_model("switch", 2), processes.size()));
  run_with(processes, nullptr, [&](RunOptions& options) {
    options.test.delay_ns = [signal, op = graph.find_op("b1.moe.gate")](
                                int64_t rank, OpId at, int64_t step) -> Nanoseconds {
      if (rank == 1 && at == op && step == 3) raise(signal);
      return 0;
    };
  });
}
void turns_killed(Processes& processes) {
  ends_in_step(processes, SIGKILL);
}
void turns_stopped(Processes& processes) {
  ends_in_step(processes, SIGSTOP);
}

}  // namespace

Cases turns_cases() {
  return {{"turns", turns},
          {"turns_fail", turns_fail},
          {"turns_never_posted", turns_never_posted},
          {"turns_leader_never_posts", turns_leader_never_posts},
          {"turns_killed", turns_killed},
          {"turns_stopped", turns_stopped}};
}

}  // namespace moe::test
