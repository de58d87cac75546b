// What the host gives to a device: the proof that it is ordered, recordings, times, and what
// happens when something is wrong.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "engine/exec/device/rank.h"
#include "engine/network/closed_form.h"
#include "tests/base/folder.h"
#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;
using Catch::StartsWith;

std::shared_ptr<const Plan> plan_for(std::vector<Stage> stages, int64_t ranks = 2,
                                     const std::string& gate = "switch") {
  PlanSpec spec = spec_of(small_model(gate, 4), ranks);
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

DeviceProgram program_of(const Plan& plan) {
  DeviceChoices choices;
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    choices.on_host.push_back(runs_on_host(plan.graph, plan.graph.op(op)) &&
                              !routes_on_device(plan, {}, op));
  }
  choices.kept = kept_tensors(plan);
  return device_program(plan, choices);
}

RunResult run_lazy(const Plan& plan, const RunOptions& options) {
  return run_lazy(plan, options, LazyOrder::kRandom, 7);
}

std::vector<std::vector<Stage>> device_systems() {
  return {{},
          {pass("dw_schedule")},
          {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")},
          {pass("capacity_pipeline", {{"degree", 2.0}})},
          {pass("irregular_a2a"), pass("used_rows"),
           pass("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 1.0}})}};
}

/// The same without anything that the host waits for.
DeviceProgram streams_alone(DeviceProgram program) {
  for (DeviceStep& step : program.steps) {
    step.host_waits.clear();
    step.host_reads.clear();
  }
  return program;
}

TEST_CASE("a program is proven, and none of its waits may be left out") {
  for (const auto& stages : device_systems()) {
    for (const char* gate : {"switch", "bpr"}) {
      const bool cut = !stages.empty() && stages.back().name == "partition";
      if (cut && gate == std::string("bpr")) continue;
      const auto plan = plan_for(stages, 2, gate);
      const DeviceProgram program = program_of(*plan);
      CAPTURE(gate, stages.size());
      CHECK_NOTHROW(check_program(*plan, program));
      CHECK_NOTHROW(check_program(*plan, streams_alone(program)));
      int64_t waits = 0;
      for (size_t s = 0; s < program.steps.size(); ++s) {
        for (size_t w = 0; w < program.steps[s].stream_waits.size(); ++w) {
          DeviceProgram less = streams_alone(program);
          auto& list = less.steps[s].stream_waits;
          list.erase(list.begin() + static_cast<std::ptrdiff_t>(w));
          ++waits;
          CHECK_THROWS_WITH(check_program(*plan, less), Contains("may begin before"));
        }
        if (!program.steps[s].marked) continue;
        DeviceProgram less = program;
        less.steps[s].marked = false;
        CHECK_THROWS_WITH(check_program(*plan, less), Contains("must be recorded before the wait"));
      }
      CHECK(waits > 0);
    }
  }
}

TEST_CASE("a program that reads on the host too early, or gives ops twice or never, is refused") {
  const auto plan = plan_for({pass("irregular_a2a"), pass("used_rows")});
  const DeviceProgram program = program_of(*plan);
  int64_t reads = 0;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (program.steps[s].host_waits.empty()) continue;
    DeviceProgram less = program;
    for (DeviceStep& step : less.steps) {  // nor by another's wait before
      if (step.op != program.steps[s].op) step.host_reads.clear();
      step.host_waits.clear();
    }
    CHECK_THROWS_WITH(check_program(*plan, less), Contains("the host may read"));
    ++reads;
  }
  CHECK(reads > 0);
  DeviceProgram twice = program;
  twice.steps.push_back(twice.steps[0]);
  CHECK_THROWS_WITH(check_program(*plan, twice), Contains("in the device program twice"));
  DeviceProgram never = program;
  never.steps.pop_back();
  CHECK_THROWS_WITH(check_program(*plan, never), Contains("not in the device program"));
}

TEST_CASE("the host waits only where it reads what the device makes, and after all that it can") {
  CHECK(program_of(*plan_for({})).recordable);
  CHECK(
      program_of(*plan_for({pass("capacity_pipeline", {{"degree", 2.0}})}, 2, "top2")).recordable);
  CHECK_FALSE(program_of(*plan_for({}, 2, "bpr")).recordable);
  const auto plan = plan_for({pass("irregular_a2a"), pass("used_rows")});
  const DeviceProgram program = program_of(*plan);
  CHECK_FALSE(program.recordable);
  const auto waits = std::count_if(program.steps.begin(), program.steps.end(),
                                   [](const DeviceStep& s) { return !s.host_waits.empty(); });
  CHECK(waits > 0);
  CHECK(waits < static_cast<int64_t>(program.steps.size()) / 2);
}

TEST_CASE("a step that the host has no part in is recorded once and replayed") {
  const auto plan = plan_for({pass("dw_schedule")});
  RunOptions options = options_of(*plan, 6);
  options.train.keep_grad_norms = true;
  const RunResult cpu = run_cpu(*plan, options);
  const RunResult device = run_lazy(*plan, options);
  CHECK(same_run(cpu, device));
  // The first step measures gradients; the next one makes what is made late.
  CHECK(lazy_stats().recordings == 1);
  CHECK(lazy_stats().replays == 4);
  CHECK(lazy_stats().handles == 0);
  CHECK(device.launches_per_step > plan->graph.num_ranks);
  CHECK(cpu.launches_per_step == 0);

  const auto by_counts = plan_for({pass("irregular_a2a"), pass("used_rows")});
  CHECK(run_lazy(*by_counts, options_of(*by_counts, 4)).launches_per_step == 0);
  CHECK(lazy_stats().recordings == 0);
}

TEST_CASE(
    "AdamW, whose factors are each step's own, is recorded and replayed, also from step 3 on, "
    "which CPU ranks take over and hand over") {
  PlanSpec spec = spec_of(small_model("switch", 4), 2);
  spec.optimizer =
      Adamw{.lr = 0.1, .beta2 = 0.95};  // forgets fast: the factors of each step differ by much
  const auto plan = make_plan(spec);
  const RunOptions options = options_of(*plan, 7);
  const RunResult cpu = run_cpu(*plan, options);
  const RunResult device = run_lazy(*plan, options);
  CHECK(same_run(cpu, device));
  CHECK(lazy_stats().recordings == 1);
  CHECK(lazy_stats().replays == 6);

  const Folder folder;
  const std::string file = folder.path("adamw.ckpt");
  for (const bool device_first : {true, false}) {
    RunOptions first = options_of(*plan, 3), rest = options_of(*plan, 4);
    first.train.checkpoints.write_to = rest.train.checkpoints.resume_from = file;
    device_first ? run_lazy(*plan, first) : run_cpu(*plan, first);
    const RunResult resumed = run_lazy(*plan, rest);
    CHECK(resumed.digest == cpu.digest);
    CHECK(lazy_stats().recordings == 1);
    CHECK(lazy_stats().replays == 3);
    CHECK(run_cpu(*plan, rest).digest == cpu.digest);
  }
}

TEST_CASE("spans on a device come one after the other on a lane, each after what it waits for") {
  for (const auto& stages : device_systems()) {
    const auto plan = plan_for(stages);
    const RunResult result = run_lazy(*plan, options_of(*plan, 4));
    REQUIRE(result.timelines.size() == 4);
    CHECK(result.provenance == Provenance::kMeasured);
    for (const Timeline& timeline : result.timelines) {
      std::vector<std::vector<Nanoseconds>> ends(2,
                                                 std::vector<Nanoseconds>(plan->graph.num_ops()));
      for (const Span& s : timeline.spans) ends[size_t(s.rank)][s.op.index()] = s.end;
      for (const Span& s : timeline.spans) {
        CHECK(s.post <= s.begin);
        CHECK(s.begin <= s.end);
        for (const OpId before : plan->waits[s.op.index()]) {
          CHECK(ends[size_t(s.rank)][before.index()] <= s.begin);
        }
        if (plan->graph.def(s.op).collective == Collective::kAllReduce) CHECK(s.bytes > 0);
      }
    }
    for (const auto& rank : result.executed) CHECK(rank == plan->orders.lanes);
  }
}

struct Given {
  std::vector<bool> urgent;          // streams, in the order in which they were made
  std::vector<int32_t> link_blocks;  // of each transfer
};
Given given;

/// The lazy device, which notes how streams and transfers were asked for.
kernels::DeviceTable noting_device() {
  given = {};
  kernels::DeviceTable device = lazy_device();
  device.make_stream = [](bool urgent) {
    given.urgent.push_back(urgent);
    return lazy_device().make_stream(urgent);
  };
  device.paced_copies = [](const kernels::Copy* copies, int64_t n, int64_t ns, int32_t blocks,
                           const kernels::LinkSignal& signal, kernels::Stream stream) {
    given.link_blocks.push_back(blocks);
    lazy_device().paced_copies(copies, n, ns, blocks, signal, stream);
  };
  return device;
}

TEST_CASE("transfers have the priority and the blocks that the run says, the usual ones unsaid") {
  const auto plan = plan_for({});
  const auto urgent_streams = [&](const RunOptions& options, int32_t blocks) {
    lazy_start(LazyOrder::kRandom, 5);
    const kernels::DeviceTable device = noting_device();
    make_device_executor(device)->run(*plan, options);
    REQUIRE(!given.link_blocks.empty());
    for (const int32_t b : given.link_blocks) CHECK(b == blocks);
    return std::count(given.urgent.begin(), given.urgent.end(), true);
  };
  RunOptions options = options_of(*plan, 1);
  options.emulate_link = true;
  const auto usual = urgent_streams(options, 8);
  options.device = {.urgent_comm = false, .link_blocks = 2};
  // Others are the link's own, which count time.
  const auto comm_lanes = static_cast<int64_t>(plan->orders.lanes.size()) - 1;
  CHECK(usual - urgent_streams(options, 2) == 2 * comm_lanes);
}

TEST_CASE("a device that hangs is told with the rank, the step and the op that it is at") {
  const auto plan = plan_for({});
  RunOptions options = options_of(*plan, 3);
  options.timeout_s = 0.5;
  options.on_step = [](int64_t step, double) {
    if (step == 0) lazy_hang();
    return true;
  };
  CHECK_THROWS_WITH(
      run_lazy(*plan, options),
      StartsWith("rank 0, step 1: the device has not finished ") && Contains("0.5 s"));
}

TEST_CASE("a run that fails on a device keeps its steps before, as on CPU ranks") {
  PlanSpec spec = spec_of(small_model(), 2);
  spec.optimizer = Sgd{.lr = 1e30};
  const auto plan = plan_of(spec);
  const auto kept = [](const auto& run) {
    try {
      run();
    } catch (const RunFailed& failed) {
      return *failed.so_far;
    }
    FAIL("it went on");
    return RunResult();
  };
  const RunOptions options = options_of(*plan, 50);
  const RunResult expected = kept([&] { run_cpu(*plan, options); });
  const RunResult result = kept([&] { run_lazy(*plan, options); });
  REQUIRE(!expected.losses.empty());
  CHECK(result.losses == expected.losses);
  CHECK(result.metrics.size() == result.losses.size());
  CHECK(result.stop_reason.find("not finite") != std::string::npos);
}

TEST_CASE("the first number that is not finite is named with its op, as on CPU ranks") {
  for (const auto& stages : device_systems()) {
    const auto plan = plan_for(stages, 1);
    RunOptions options = options_of(*plan, 2);
    options.init = [](uint64_t element, uint64_t parameter) {
      const bool bad = parameter > 3 && element == 17;
      return bad ? std::numeric_limits<double>::quiet_NaN() : 0.01;
    };
    std::string on_cpu;
    try {
      run_cpu(*plan, options);
    } catch (const RunError& e) {
      on_cpu = e.what();
    }
    REQUIRE_THAT(on_cpu, Contains("produced the first number that is not finite"));
    // What the number is, is not kept on a device.
    CHECK_THROWS_WITH(run_lazy(*plan, options),
                      StartsWith(on_cpu.substr(0, on_cpu.find(" is nan"))));
  }
}

TEST_CASE("scores that are not numbers end a run on a device also where nobody looks for them") {
  const auto plan = plan_for({}, 1);
  RunOptions options = options_of(*plan, 1);
  options.check_finite = false;
  options.init = [](uint64_t, uint64_t) { return std::numeric_limits<double>::quiet_NaN(); };
  CHECK_THROWS_WITH(run_lazy(*plan, options),
                    Contains("b1.moe.gate") && Contains("must be numbers"));
}

TEST_CASE("what does not run on a device is refused by name before anything starts") {
  const auto plan = plan_for({});
  RunOptions in_double = options_of(*plan, 1);
  in_double.precision = Precision::kF64;
  CHECK_THROWS_WITH(run_lazy(*plan, in_double), Contains("f64 needs the executor cpu"));
  RunOptions in_bf16 = options_of(*plan, 1);
  in_bf16.precision = Precision::kBF16;
  CHECK_THROWS_WITH(run_lazy(*plan, in_bf16),
                    Contains("model.dtype is bf16, but the plan's is f32"));
  CHECK(lazy_stats().handles == 0);
}

}  // namespace
}  // namespace moe::test
