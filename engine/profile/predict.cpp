#include "engine/profile/predict.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/comm/communicator.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/device/executor.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/plugin.h"
#include "engine/exec/results/machine_state.h"
#include "engine/exec/run_options.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_profiler.h"
#include "engine/profile/profiler.h"
#include "engine/profile/rehearsal.h"

namespace moe {
namespace {

/// Inputs and outputs to call a gate with the sizes of an op, with scores as from a softmax.
struct GateTrial {
  explicit GateTrial(const Graph& graph, const Op& op) {
    const bool together = op.attrs.contains("all_capacity");  // else of a rank's tokens
    const Shape& scores_shape = graph.tensor(together ? op.inputs.back() : op.outputs[0]).shape;
    in.tokens = scores_shape[0];
    in.experts = scores_shape[1];
    in.k = attr_int(op, "k", 1);
    in.capacity = attr_int(op, together ? "all_capacity" : "capacity");
    maps.columns = graph.tensor(output_of(graph, op, Role::kExpert)).shape[1];
    Rng rng(1000249);
    scores.resize(static_cast<size_t>(in.tokens * in.experts));
    for (float& s : scores) {
      s = static_cast<float>((0.5 + rng.uniform()) / static_cast<double>(in.experts));
    }
    ids.resize(static_cast<size_t>(in.tokens));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(256));
    in.scores = scores.data();
    in.ids = ids.data();
    maps.tokens = in.tokens;
    maps.experts = in.experts;
    maps.capacity = in.capacity;
    place(expert, maps.expert, in.tokens * maps.columns);
    place(choice_slot, maps.choice_slot, in.tokens * maps.columns);
    place(slot_choice, maps.slot_choice, in.experts * in.capacity);
    place(counts, maps.counts, in.experts);
  }
  GateTrial(const GateTrial&) = delete;
  GateTrial& operator=(const GateTrial&) = delete;

  GateInput in;
  RoutingMaps maps;

 private:
  static void place(std::vector<int32_t>& values, int32_t*& pointer, int64_t n) {
    values.resize(static_cast<size_t>(n));
    pointer = values.data();
  }
  std::vector<float> scores;
  std::vector<int32_t> ids, expert, choice_slot, slot_choice, counts;
};

// Returns samples of the gate's own time plus the median of `rest`, the rest of the op; they are
// disturbed if `rest` is.
Samples time_gate(const Gate& gate, const Graph& graph, const Op& op, Samples rest,
                  const ProfileOptions& options) {
  GateTrial trial(graph, op);
  const Nanoseconds around = median(rest.ns);
  std::vector<Nanoseconds> samples;
  const double slower = options.at_reference ? slower_than_reference() : 1;
  const int64_t until = clock_ns() + static_cast<int64_t>(options.min_time_s * 1e9);
  const auto enough = static_cast<size_t>(options.min_samples);
  while (samples.size() < enough || clock_ns() < until) {
    RoutingBuilder builder(trial.maps);
    const int64_t begin = clock_ns();
    gate.route(trial.in, builder);
    samples.push_back(around + std::llround(static_cast<double>(clock_ns() - begin) / slower));
  }
  rest.ns = std::move(samples);
  return rest;
}

/// Returns samples of the policy's own time plus the median of `rest`, the rest of the op; they are
/// disturbed if `rest` is. A policy that is called every n steps counts 1/n of the time of a call.
Samples time_policy(const PlacementFunction& policy, const Op& op, Samples rest,
                    const ProfileOptions& options) {
  const Nanoseconds around = median(rest.ns);
  const PlacementBounds bounds = ops::bounds_of(op);
  const Placement now(bounds);
  Rng rng(1000257);
  ExpertCounts loads(bounds.devices, bounds.experts);
  for (int64_t& rows : loads.rows) rows = rng.below(256);
  std::vector<Nanoseconds> samples;
  const int64_t every = attr_int(op, "every", 1);
  const double slower = options.at_reference ? slower_than_reference() : 1;
  const int64_t until = clock_ns() + static_cast<int64_t>(options.min_time_s * 1e9);
  const auto enough = static_cast<size_t>(options.min_samples);
  while (samples.size() < enough || clock_ns() < until) {
    const PlaceInput input = {.step = static_cast<int64_t>(samples.size()) * every,
                              .layer = attr_int(op, "layer_number"),
                              .loads = loads,
                              .now = now,
                              .rates = ops::placement_rates(op)};
    LastPlaced last;
    const int64_t begin = clock_ns();
    ask_policy(policy, attr_string(op, "policy"), 0, input, last);
    const double own = static_cast<double>(clock_ns() - begin) / slower;
    samples.push_back(around + std::llround(own / static_cast<double>(every)));
  }
  rest.ns = std::move(samples);
  return rest;
}

/// Returns `measure` changed so that the time of calling rank 0's gate is added for gate ops whose
/// gate is `name`.
ProfileCost::Measure with_gate(ProfileCost::Measure measure, RankGates gates, std::string name,
                               const ProfileOptions& options) {
  return [measure = std::move(measure), gates = std::move(gates), name = std::move(name), options](
             const Graph& graph, OpId op, const WorkContext& work) {
    const bool is_gate = graph.def(op).moe == MoeOp::kGate;
    if (!is_gate || attr_string(graph.op(op), "gate") != name) return measure(graph, op, work);
    // measure() times the op with a built-in gate, whose own time is only a small part of it.
    return time_gate(gates(0), graph, graph.op(op), measure(graph, op, work), options);
  };
}

/// Returns `measure` changed so that for place ops whose policy is a function of the recipe the
/// time of that function on rank 0 is added, divided by the number of steps between calls
/// (attribute `every`).
ProfileCost::Measure with_policies(ProfileCost::Measure measure, RankPlacements policies,
                                   const ProfileOptions& options) {
  return [measure = std::move(measure), policies = std::move(policies), options](
             const Graph& graph, OpId op, const WorkContext& work) {
    PlacementFunction own;
    if (graph.def(op).moe == MoeOp::kPlace) own = policies(0, attr_string(graph.op(op), "policy"));
    if (!own) return measure(graph, op, work);
    Graph fixed = graph;
    Attrs& attrs = fixed.op(op).attrs;
    for (const auto& [option, value] : ops::option_attrs(ops::place_options(graph.op(op)))) {
      attrs.erase(option);
    }
    attrs["policy"] = std::string("fixed");
    return time_policy(own, graph.op(op), measure(fixed, op, work), options);
  };
}

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
