// Rehearsal: a few executed steps of the plain program of a target. They show how much longer ops
// take inside a step than alone (cost/in_step.h), which the predictions of all systems on that
// target use. A rehearsal uses the target's model, ranks and gate, made-up tokens, a learning rate
// of 0 and, if the target has a link, another link. It never uses the target's link, the plan of a
// system, or the data of the run that is predicted.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/cost/in_step.h"
#include "engine/cost/profile_cache.h"
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
  /// Called to time an op alone again, once per signature (kind and shapes), if the op took less
  /// than kLeastFactor of its time alone inside the rehearsed steps. An op is hardly faster inside
  /// a step, so its measurement alone was probably disturbed. May be null.
  std::function<void(const Graph&, OpId)> time_again;
};
constexpr double kLeastFactor = 0.95;

/// Samples in ns. For the name of a step_group() (cost/in_step.h), one sample per step: the sum of
/// its ops' durations, averaged over ranks; a collective counts from the post of its last member.
/// For "peers", one sample of Metrics::wait_ns per step. With an emulated link and several ranks,
/// but without a pace, also for "core": samples of InStep::core_ns, taken with very small
/// transfers; and for "core late": how much later than by the link model each of these transfers
/// ended.
using StepSamples = std::map<std::string, std::vector<Nanoseconds>>;

/// Executes the plan for options.steps steps and returns their samples. Throws the errors of a run,
/// and Interrupted if the run is stopped.
StepSamples rehearse(const Plan& plan, const RehearsalOptions& options);

/// Returns the factors that follow from the medians of the samples and the times of the same ops
/// alone in plan.spec.cost. Requires: samples of each group of the plan.
InStep in_step(const Plan& plan, const StepSamples& samples);

/// As in_step(), with samples from the cache. If the cache lacks some of them, executes the steps
/// and stores their samples. The keys consist of `key_prefix`, the plan's hash (which depends on
/// model, ranks, gate and optimizer), the link, the number of steps and the pace.
InStep rehearsed(const PlanSpec& spec, const RehearsalOptions& options, ProfileCache& cache,
                 const std::string& key_prefix);

}  // namespace moe
