// Rehearsal: a few executed steps of the plain program of a target. They show how much longer ops
// take inside a step than alone (cost/in_step.h), which the predictions of all systems on that
// target use, and how the gate routes tokens. A rehearsal uses the target's model, ranks, gate and
// optimizer, other tokens and, if the target has a link, another link. It never uses the target's
// link, the plan of a system, or the data of the run that is predicted.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cost/in_step.h"
#include "engine/exec/executor.h"
#include "engine/plan.h"

namespace moe {

/// Returns the spec of the plain program of `target`: expert parallelism without stages, padded
/// all-to-alls, all-reduces in buckets of 25 MiB after the backward pass, f32, all slots full. If
/// `emulated`, ranks are connected by kRehearsalLink, otherwise by memory. The caller must set
/// `cost` to a model with the times of ops alone, and of collectives on this spec's cluster.
PlanSpec rehearsal_spec(const PlanSpec& target, bool emulated);

struct RehearsalOptions {
  int64_t steps = 8;  // at least 1; one more step before them touches all pages and is not counted
  bool emulated = false;
  bool check_finite = true;
  double pace = 0;  // RunOptions::pace
  RankGates gate;   // see Policies::gate
  /// The tokens of the steps, which must not be those of the run that is predicted. Null: tokens of
  /// the reference model's generator.
  DataSource data;
  std::shared_ptr<Trace> routing;  // see rehearse()
  /// Called to time an op alone again, once per signature (kind and shapes), if the op took less
  /// than kLeastFactor of its time alone inside the rehearsed steps, on a machine that is faster
  /// than the reference by InStep::overall; a collective, if it ended before its time alone. An op
  /// is hardly faster inside a step, so its measurement alone was probably disturbed. May be null.
  std::function<void(const Graph&, OpId)> time_again;
};
constexpr double kLeastFactor = 0.95;

/// Samples in ns. For the name of a step_group() (cost/in_step.h), one sample per step: the sum of
/// its ops' durations, averaged over the ranks of an op; a collective counts from the post of its
/// last member. For "peers" one sample per step of the waits for members of collectives, so
/// averaged, and for "step" of Metrics::makespan_ns. With an emulated link and several ranks, but
/// without a pace, also for "core": samples of InStep::core_ns, taken with very small transfers;
/// and for "core late": how much later than by the link model each of these transfers ended.
using StepSamples = std::map<std::string, std::vector<Nanoseconds>>;

/// The rehearsal of a plain program, ready to run: options.steps steps after a first one, with a
/// learning rate of 0, so that they cannot diverge.
struct RehearsalRun {
  std::shared_ptr<const Plan> plan;
  RunOptions options;
};
RehearsalRun rehearsal_run(const Plan& plan, const RehearsalOptions& options);

/// Returns the samples of the steps after the first, except "core" and "core late".
StepSamples step_samples(const Graph& graph, const RunResult& result);
/// Executes the steps and returns their samples. options.routing, if it is not null, receives the
/// routing of all steps. The learning rate is that of the plan, since a router that learns routes
/// in another way; if the training diverges, the steps are executed again with one of 0. Throws the
/// errors of a run, and Interrupted if the run is stopped.
StepSamples rehearse(const Plan& plan, const RehearsalOptions& options);

/// Returns the factors that follow from the middles of the samples (the means of those between the
/// quartiles) and the times of the same ops alone in plan.spec.cost. Requires: samples of each
/// group of the plan.
InStep in_step(const Plan& plan, const StepSamples& samples);
/// Returns by what factor compute took longer in `now` than in `then`, with the time in which ranks
/// waited for a slower one: the ratio of the sums of the middles of all groups of compute ops and
/// of "peers". Compute alone is a mean over ranks, but a step is as slow as its slowest core.
double slower(const Graph& graph, const StepSamples& now, const StepSamples& then);

/// At most so many steps of a rehearsal are executed in turns with the runs that are predicted:
/// enough for a middle; more would only take time.
constexpr int64_t kMostStepsBeside = 64;

/// What a run of the plain program in turns with others tells of the machine's speed.
struct SpeedBeside {
  /// By what factor compute took longer than in the rehearsal: slower().
  double slower = 1;
  /// For each step after the first, its time divided by the middle of all.
  std::vector<double> steps;
  /// Compute's part of the middle step; the rest does not depend on the machine's speed.
  double compute_share = 1;
};

/// The rehearsal of one target. It is executed again before runs that begin later, since the
/// machine may have become faster or slower; what it found is not kept beyond the process.
class Rehearsal {
 public:
  Rehearsal(std::shared_ptr<const Plan> plan, RehearsalOptions options);
  /// Executes the rehearsal, unless it was executed after `since` (clock_ns()); up to three times
  /// if others use the cores meanwhile. Throws as rehearse() does.
  void execute(Nanoseconds since);
  /// What the last execution found.
  const InStep& in_step() const { return in_step_; }
  /// The routing of the plan's gate in the steps; null if the plan has no MoE layer or a routing
  /// model in place of the gate.
  const std::shared_ptr<const RoutingModel>& routing() const { return routing_; }
  int64_t num_steps() const { return options_.steps; }
  /// Returns rehearsal_run() with another number of steps in all, to be executed in turns with the
  /// runs that are predicted.
  RehearsalRun beside(int64_t steps) const;
  /// Returns the machine's speed in the run beside(), compared with the last execution, and sets
  /// in_step_beside(). Requires: more than one step.
  SpeedBeside speed(const RunResult& beside);
  /// The factors in the last run beside(): those of a machine that runs other programs in turns,
  /// at its speed at that time. Throws std::bad_optional_access before speed().
  const InStep& in_step_beside() const { return beside_.value(); }

 private:
  double least_disturbed(const RehearsalOptions& options);

  const std::shared_ptr<const Plan> plan_;
  const RehearsalOptions options_;
  Nanoseconds began_ = 0;  // 0: not executed yet
  StepSamples samples_;
  InStep in_step_;
  std::optional<InStep> beside_;
  std::shared_ptr<const RoutingModel> routing_;
};

}  // namespace moe
