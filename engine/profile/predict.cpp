#include "engine/profile/predict.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/device/executor.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/plugin.h"
#include "engine/exec/results/machine_state.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_profiler.h"
#include "engine/profile/profiler.h"
#include "engine/profile/rehearsal.h"

namespace moe {
namespace {

/// The functions that time ops on the CPU or on a device, and the prefix of their cache keys.
struct Profiler {
  ProfileCost::Measure measure;
  std::string key;
  ProfileCost::MeasureHandoff handoff;
  std::optional<kernels::DeviceTable> device;  // nullopt for the CPU
};

template <class Profile>
ProfileCost::Measure filled(Profile profile, const ProfileOptions& options) {
  return [profile, options](const Graph& graph, OpId op, const WorkContext& work) {
    ProfileOptions with = options;
    with.work = work;
    return profile(graph, op, with);
  };
}

Profiler profiler_on(const PredictOptions& predicted, const ProfileOptions& options) {
  if (predicted.device == "cpu") {
    ProfileCost::MeasureHandoff handoff = [n = options.ranks_beside] { return profile_handoff(n); };
    // In a paced run ops begin when their inputs are ready, whenever the lane's thread wakes up.
    if (options.paced) handoff = nullptr;
    return {filled(profile_op, options), profile_key(options), handoff, std::nullopt};
  }
  if (predicted.device != "cuda") {
    throw user_error("cost.device: '{}' is not allowed; give cpu or cuda", predicted.device);
  }
  const std::string missing = cuda_missing();
  if (!missing.empty()) throw user_error("cost.device = cuda is not possible: {}", missing);
  const kernels::DeviceTable table = computing_in(predicted.bf16, *cuda_plugin().table);
  table.use_device(0);  // the device that the executor uses
  const auto profile = [table](const Graph& graph, OpId op, const ProfileOptions& with) {
    return profile_op_on_device(graph, op, with, table);
  };
  return {filled(profile, options),
          device_profile_key(options, table) + (predicted.bf16 ? "; bf16" : ""), nullptr, table};
}

/// Adds to `cost` how much the run's transfers slow down compute that runs at the same time.
void add_overlap(ProfileCost& cost, const PlanSpec& spec, const PredictOptions& options,
                 ProfileOptions profile, const Profiler& profiler, ProfileCache& cache) {
  if (options.gpu_of_one) profile.ranks_beside = 1;
  OverlapOptions overlap = {.profile = profile};
  if (std::find(overlap.blocks.begin(), overlap.blocks.end(), options.blocks) ==
      overlap.blocks.end()) {
    overlap.blocks.push_back(options.blocks);
  }
  if (cost.network() != nullptr) overlap.bytes_per_s = spec.cluster.nic.bytes_per_s;
  cost.set_overlap(
      overlap_table(spec.model->forward, overlap, cache, profiler.key, *profiler.device),
      options.blocks);
}

/// Returns the rehearsal of the plain program `plain`, whose ops take the times of `alone`; that of
/// options.rehearsals if it is there.
std::shared_ptr<Rehearsal> rehearsal_of(PlanSpec plain, const PredictOptions& options,
                                        const std::shared_ptr<ProfileCost>& alone) {
  const std::shared_ptr<const Plan> plan = make_plan(std::move(plain));
  Rehearsals own;
  Rehearsals& all = options.rehearsals != nullptr ? *options.rehearsals : own;
  std::shared_ptr<Rehearsal>& known = all[fmt::format(
      "plan {}, emulated {}, {} steps on {}, finite {}, pace {}", plan->hash, options.emulated,
      options.rehearse, options.tokens_from, options.check_finite, options.pace)];
  if (known == nullptr) {
    known = std::make_shared<Rehearsal>(
        plan, RehearsalOptions{.steps = options.rehearse,
                               .emulated = options.emulated,
                               .check_finite = options.check_finite,
                               .pace = options.pace,
                               .gate = options.gate,
                               .data = options.tokens,
                               .time_again = [alone](const Graph& graph, OpId op) {
                                 alone->time_again(graph, op);
                               }});
  }
  return known;
}

/// The number of cores on which the threads of this machine run at the same time.
int64_t num_cores() {
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

/// Returns the gates with which a gate op is timed; null for built-in ones.
RankGates gates_of(const PlanSpec& spec, const PredictOptions& options) {
  if (!spec.routing || spec.routing->runs_gate()) return options.gate;
  return [routing = spec.routing, model = spec.model, ranks = spec.num_ranks](int64_t) {
    return routed_gate(routing, *model, ranks);
  };
}

}  // namespace

Prediction predicted_cost(const PlanSpec& spec, const PredictOptions& options) {
  ProfileOptions profile;
  const int64_t all = spec.num_ranks * spec.pipeline_ranks();
  profile.ranks_beside = options.pace > 0 ? std::min(all, num_cores()) : all;
  profile.checked = options.check_finite;
  profile.paced = options.pace > 0;
  // Only with a rehearsal, which says how fast the machine is. Without, two processes that find the
  // same times in the cache must make the same plan.
  profile.at_reference = options.device == "cpu" && options.rehearse > 0;
  const Profiler profiler = profiler_on(options, profile);
  if (options.rehearse > 0 && profiler.device) {
    throw user_error(
        "cost.rehearse = {} with cost.device = {}: steps can be rehearsed on cpu only; set "
        "rehearse = 0",
        options.rehearse, options.device);
  }
  ProfileCost::Measure measure = profiler.measure;
  const RankGates gates = gates_of(spec, options);
  if (gates) measure = with_gate(measure, gates, spec.gate.name, profile);
  if (options.place) measure = with_policies(measure, options.place, profile);

  // Looks at the machine once for all times of this prediction.
  const auto quiet = [looked = std::make_shared<std::optional<bool>>()] {
    if (!*looked) *looked = machine_is_quiet();
    return **looked;
  };
  const auto cache = std::make_shared<ProfileCache>(options.cache);
  const auto cost_on = [&](const PlanSpec& of) {
    const Cluster link = of.rank_cluster();
    return std::make_shared<ProfileCost>(cache, profiler.key, measure,
                                         options.emulated ? &link : nullptr, of.work,
                                         profiler.handoff, quiet);
  };
  const auto cost = cost_on(spec);
  if (profile.at_reference) cost->set_slower(slower_than_reference());
  if (options.blocks > 0 && profiler.device) {
    add_overlap(*cost, spec, options, profile, profiler, *cache);
  }
  std::shared_ptr<Rehearsal> rehearsal;
  if (options.rehearse > 0) {
    PlanSpec plain = rehearsal_spec(spec, options.emulated);
    const auto alone = cost_on(plain);
    plain.cost = alone;
    rehearsal = rehearsal_of(std::move(plain), options, alone);
    rehearsal->execute(0);
    cost->set_in_step(rehearsal->in_step());
  }
  return {cost, std::move(rehearsal), cache->take_warning()};
}

Plan with_in_step(const Plan& plan, const ProfileCost& cost, std::optional<InStep> in_step) {
  const auto changed = std::make_shared<ProfileCost>(cost);
  changed->set_in_step(std::move(in_step));
  Plan same = plan;
  same.spec.cost = changed;
  return same;
}

}  // namespace moe
