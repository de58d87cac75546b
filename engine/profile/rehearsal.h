// Rehearsal: a few executed steps of the plain program of a target, from which predictions of any
// system on that target take how much longer ops are in a step than alone (cost/in_step.h).
// What a rehearsal sees: the target's model, ranks and gate, made-up tokens, parameters that stand
// still, and, for a target with a link, a link of its own. It never sees the target's link, a
// system's plan, or the data of the run that is predicted.
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

/// The target under plain expert parallelism: no stages, padded all-to-alls, all-reduces in buckets
/// of 25 MiB after the backward, f32, slots full. `emulated`: over kRehearsalLink, else the ranks'
/// memory. The caller sets `cost`: ops alone, collectives on this spec's cluster.
PlanSpec rehearsal_spec(const PlanSpec& target, bool emulated);

struct RehearsalOptions {
  int64_t steps = 8;  // after one that touches every page and is dropped; at least 1
  bool emulated = false;
  bool check_finite = true;
  RankGates gate;  // as Policies::gate
  /// Asked to time an op alone once more, once a signature, where steps take less than kLeastFactor
  /// of the time alone: an op is hardly faster between others, its profile was disturbed. May be
  /// null.
  std::function<void(const Graph&, OpId)> time_again;
};
constexpr double kLeastFactor = 0.95;

/// Samples in ns, one per step. By step_group(): the sum over its ops of the mean rank's duration,
/// of a collective from when its last member posted. Under "peers": Metrics::wait_ns. Under "core",
/// over a link and where ranks meet: samples of InStep::core_ns; under "core late": of how late
/// such transfers end.
using StepSamples = std::map<std::string, std::vector<Nanoseconds>>;

/// Executes the steps. Throws what a run throws, RunError when it is interrupted.
StepSamples rehearse(const Plan& plan, const RehearsalOptions& options);

/// Medians of the samples over what plan.spec.cost says of the same ops alone. Requires: samples of
/// every group of the plan.
InStep in_step(const Plan& plan, const StepSamples& samples);

/// The same with samples from the cache; where it lacks some the steps are executed and stored.
/// They stand under the key prefix, the plan's hash (model, ranks, gate, optimizer), the link and
/// the number of steps.
InStep rehearsed(const PlanSpec& spec, const RehearsalOptions& options, ProfileCache& cache,
                 const std::string& key_prefix);

}  // namespace moe
