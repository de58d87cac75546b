// Runs of one rank per process against the same runs in one process, which rank 0 makes afterwards.
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/routing/trace.h"
#include "tests/exec/support.h"
#include "tests/job/programs/ranks.h"

namespace moe::test {
namespace {

using Change = std::function<void(RunOptions&)>;

RunOptions options_with(const Plan& plan, int64_t steps, const Change& change) {
  RunOptions options = options_of(plan, steps);
  options.timeout_s = 20;
  options.train.keep_grad_norms = true;
  if (change) change(options);
  return options;
}

RunResult run_apart(Processes& processes, const Plan& plan, int64_t steps, const Change& change) {
  RunOptions options = options_with(plan, steps, change);
  options.processes = &processes;
  return run_cpu(plan, options);
}

/// Bit for bit.
void expect_same(Processes& p, const RunResult& a, const RunResult& b) {
  const SameRun same = same_run(a, b);
  expect(p, !a.losses.empty(), "losses");
  expect(p, bool(same), "the same run: " + same.differences);
  expect(p, a.executed == b.executed, "the same ops on all lanes");
}

/// Returns the result of the processes, on rank 0.
RunResult check_run(Processes& processes, const Plan& plan, int64_t steps,
                    const Change& change = nullptr) {
  RunResult apart = run_apart(processes, plan, steps, change);
  if (!processes.is_root()) return {};
  expect_same(processes, apart, run_cpu(plan, options_with(plan, steps, change)));
  expect(processes, apart.provenance == Provenance::kMeasured, "measured");
  expect(processes, apart.timelines.size() == static_cast<size_t>(steps), "a timeline per step");
  for (const Timeline& timeline : apart.timelines) {
    for (const Span& span : timeline.spans) {
      expect(processes, span.post <= span.begin && span.begin <= span.end, "post, begin, end");
    }
  }
  return apart;
}

/// The reference model, against numbers that an independent program made where it has them. Its
/// double kernels are slow: few steps.
void reference(Processes& processes) {
  const int64_t n = processes.size();
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    const auto plan = plan_of(spec_of(reference_model("switch", n), n, precision));
    const int64_t steps = precision == Precision::kF32 ? 5 : 2;
    const RunResult result = check_run(processes, *plan, steps);
    if (!processes.is_root() || n != 2) continue;
    std::ifstream in(std::string(MOE_SOURCE_DIR) + "/tests/data/golden_tiny.json");
    const auto golden = nlohmann::json::parse(in)["gates"]["switch_ranks2"]["fp64"];
    const double tolerance = precision == Precision::kF32 ? 2e-6 : 1e-9;
    for (size_t s = 0; s < result.losses.size(); ++s) {
      const double loss = golden["losses"][s];
      expect(processes, std::abs(result.losses.at(s) - loss) < tolerance, "golden losses");
      for (size_t l = 0; l < result.moe[s].size(); ++l) {
        expect(processes,
               fmt::format("{:016x}", result.moe[s][l].checksum) ==
                   golden["moe"][s][l]["checksum"].get<std::string>(),
               "golden assignments");
      }
    }
  }
}

/// Legal edits at random, the same on all ranks.
Placement edit(const PlaceInput& input) {
  Rng rng(static_cast<uint64_t>(input.step * 10 + input.layer));
  Placement p = input.now;
  p.clear_shadows();
  const PlacementBounds& b = p.bounds();
  for (int i = 0; i < 8; ++i) {
    const int64_t expert = rng.below(b.experts), device = rng.below(b.devices);
    try {
      if (i % 2 == 0) p.add_shadow(expert, device);
      if (i % 2 == 1) p.swap_owners(expert, rng.below(b.experts));
    } catch (const UserError&) {  // no room, or not there
    }
  }
  return p;
}

Stage placed() {
  PlacementStage how = {.shadows = 2, .extra_residents = 1, .moves_residents = true};
  Stage stage;
  stage.name = how.policy = "test";
  stage.kind = StageKind::kPlacement;
  stage.transform = [how](Graph graph, const PassContext& context) {
    return place_experts(std::move(graph), how, context);
  };
  return stage;
}

std::shared_ptr<const Plan> plan_with(PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

/// What else a run may have: groups, placements that change, real rows, two comm lanes, router
/// losses, inference, records.
void kinds(Processes& processes) {
  const int64_t n = processes.size();
  Gpt2 grouped = small_model("top2", 2);
  grouped.ep = n / 2;
  grouped.balance_loss.coefficient = 0.02;
  grouped.z_loss = 1e-3;
  PlanSpec two_lanes = spec_of(grouped, n, Precision::kF64);
  two_lanes.system.sync.lane = ReduceLane::kOwn;
  check_run(processes, *plan_with(two_lanes, {}), 3, [](RunOptions& options) {
    options.train.eval_batches = 2;
    options.train.eval_data = options.data;
  });
  two_lanes.optimizer = Adamw{.lr = 0.01};
  check_run(processes, *plan_with(two_lanes, {pass("zero")}), 3);
  const PlanSpec plain = spec_of(small_model("switch", 2), n);
  check_run(processes, *plan_of(plain, ragged_step_graph(plain)), 2);
  check_run(processes, *plan_with(plain, {placed()}), 5, [](RunOptions& options) {
    options.policies.place = [](int64_t, const std::string&) { return edit; };
  });
  PlanSpec inference = plain;
  inference.inference = true;
  Stage lina;
  lina.name = "lina_inference";
  check_run(processes, *plan_with(inference, {lina}), 2,
            [](RunOptions& options) { options.infer.keep_predictions = true; });
  const auto apart = std::make_shared<Trace>(), together = std::make_shared<Trace>();
  int64_t runs = 0;
  check_run(processes, *plan_of(plain), 3,
            [&](RunOptions& options) { options.record = runs++ == 0 ? apart : together; });
  expect(processes, !processes.is_root() || apart->choices == together->choices, "the same trace");
}

std::string file_of(Processes& processes) {
  return processes.broadcast("name", "/tmp/moebench_mpi_" + std::to_string(getpid()) + ".ckpt");
}

std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void checkpoints(Processes& processes) {
  const int64_t n = processes.size();
  const std::string file = file_of(processes);
  const auto plan = plan_with(spec_of(small_model("switch", 2), n), {placed()});
  const auto change = [&](const char* from, const std::string& to) {
    return [=](RunOptions& options) {
      options.policies.place = [](int64_t, const std::string&) { return edit; };
      options.train.checkpoints.resume_from = from;
      options.train.checkpoints.write_to = to;
    };
  };
  run_apart(processes, *plan, 2, change("", file));
  const RunResult apart = run_apart(processes, *plan, 2, change(file.c_str(), ""));
  if (processes.is_root()) {
    run_cpu(*plan, options_with(*plan, 2, change("", file + "2")));
    expect(processes, content(file) == content(file + "2"), "the same file");
    const RunResult whole = run_cpu(*plan, options_with(*plan, 4, change("", "")));
    expect(processes, apart.digest == whole.digest && apart.losses[1] == whole.losses[3],
           "a run that is cut in two is the same run");
  }
  const auto inference = [&] {
    PlanSpec spec = spec_of(small_model("switch", 2), n);
    spec.inference = true;
    return make_plan(spec);
  }();
  const auto read = [&](RunOptions& options) { options.infer.parameters_from = file; };
  if (processes.is_root()) {
    const auto plain = plan_of(spec_of(small_model("switch", 2), n));
    run_cpu(*plain,
            options_with(*plain, 1, [&](RunOptions& o) { o.train.checkpoints.write_to = file; }));
  }
  processes.gather("file", "");
  check_run(processes, *inference, 1, read);
  if (!processes.is_root()) return;
  std::filesystem::remove(file);
  std::filesystem::remove(file + "2");
}

void stops_together(Processes& processes) {
  const auto plan = plan_of(spec_of(small_model("switch", 2), processes.size()));
  const RunResult result = run_apart(processes, *plan, 50, [](RunOptions& options) {
    options.on_step = [](int64_t step, double) { return step < 2; };
  });
  expect(processes, result.stopped, "all know that it stopped");
  expect(processes, result.losses.size() == (processes.is_root() ? 3 : 0), "after three steps");
}

void other_plan(Processes& processes) {
  const int64_t n = processes.size();
  PlanSpec spec = spec_of(small_model("switch", 2), n);
  if (processes.rank() == 1) spec.optimizer = Adamw{.lr = 0.1};
  run_apart(processes, *plan_of(spec), 1, nullptr);
}

void other_number(Processes& processes) {
  const auto plan = plan_of(spec_of(small_model("switch", 2), 2 * processes.size()));
  run_apart(processes, *plan, 1, nullptr);
}

void with_link(Processes& processes) {
  const auto plan = plan_of(spec_of(small_model("switch", 2), processes.size()));
  run_apart(processes, *plan, 1, [](RunOptions& options) { options.emulate_link = true; });
}

void not_finite(Processes& processes) {
  const auto plan = plan_of(spec_of(small_model("switch", 2), processes.size()));
  run_apart(processes, *plan, 1, [&](RunOptions& options) {
    if (processes.rank() != 1) return;
    options.init = [](uint64_t element, uint64_t parameter) {
      return parameter == 0 && element < 100 ? std::nan("") : 0.01;
    };
  });
}

void stopped_in_step(Processes& processes) {
  const auto plan = plan_of(spec_of(small_model("switch", 2), processes.size()));
  run_apart(processes, *plan, 1'000'000, [&](RunOptions& options) {
    options.test.delay_ns = [&](int64_t rank, OpId op, int64_t step) -> Nanoseconds {
      if (rank == 1 && op == plan->orders.lanes[1][0] && step == 3) raise(SIGSTOP);
      return 0;
    };
  });
}

}  // namespace

Cases run_cases() {
  return {{"reference", reference},
          {"kinds", kinds},
          {"checkpoints", checkpoints},
          {"stops_together", stops_together},
          {"other_plan", other_plan},
          {"other_number", other_number},
          {"with_link", with_link},
          {"not_finite", not_finite},
          {"stopped_in_step", stopped_in_step}};
}

}  // namespace moe::test
