#include "engine/profile/predict.h"

#include <algorithm>
#include <optional>
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
    return {filled(profile_op, options), profile_key(options),
            [n = options.ranks_beside] { return profile_handoff(n); }, std::nullopt};
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

}  // namespace

Prediction predicted_cost(const PlanSpec& spec, const PredictOptions& options) {
  ProfileOptions profile;
  profile.ranks_beside = spec.num_ranks;
  profile.checked = options.check_finite;
  const Profiler profiler = profiler_on(options, profile);
  if (options.rehearse > 0 && profiler.device) {
    throw user_error(
        "cost.rehearse = {} with cost.device = {}: steps can be rehearsed on cpu only; set "
        "rehearse = 0",
        options.rehearse, options.device);
  }
  ProfileCost::Measure measure = profiler.measure;
  RankGates gates = options.gate;
  if (spec.routing && !spec.routing->runs_gate()) {
    gates = [routing = spec.routing, model = spec.model, ranks = spec.num_ranks](int64_t) {
      return routed_gate(routing, *model, ranks);
    };
  }
  if (gates) measure = with_gate(measure, gates, spec.gate.name, profile);
  if (options.place) measure = with_policies(measure, options.place, profile);

  // Looks at the machine once for all times of this prediction.
  const auto quiet = [looked = std::make_shared<std::optional<bool>>()] {
    if (!*looked) *looked = machine_is_quiet();
    return **looked;
  };
  const auto cache = std::make_shared<ProfileCache>(options.cache);
  const auto cost_on = [&](const PlanSpec& of) {
    return std::make_shared<ProfileCost>(cache, profiler.key, measure,
                                         options.emulated ? &of.cluster : nullptr, of.work,
                                         profiler.handoff, quiet);
  };
  const auto cost = cost_on(spec);
  if (options.blocks > 0 && profiler.device) {
    add_overlap(*cost, spec, options, profile, profiler, *cache);
  }
  if (options.rehearse > 0) {
    PlanSpec plain = rehearsal_spec(spec, options.emulated);
    const auto alone = cost_on(plain);
    plain.cost = alone;
    RehearsalOptions rehearsal;
    rehearsal.steps = options.rehearse;
    rehearsal.emulated = options.emulated;
    rehearsal.check_finite = options.check_finite;
    rehearsal.gate = options.gate;
    rehearsal.time_again = [&](const Graph& graph, OpId op) { alone->time_again(graph, op); };
    cost->set_in_step(rehearsed(plain, rehearsal, *cache, profiler.key));
  }
  return {cost, cache->take_warning()};
}

Plan before_rehearsal(const Plan& plan, const ProfileCost& cost) {
  const auto alone = std::make_shared<ProfileCost>(cost);
  alone->set_in_step(std::nullopt);
  Plan same = plan;
  same.spec.cost = alone;
  return same;
}

}  // namespace moe
