// core.lina_trace, _inference, _place, _locality, _popularity and _token_classes: Lina's inference
// scheduler as functions. Its phase 1 places the experts of a layer by an estimate of their
// popularity; phase 2 places them again if the gate's choices show that the estimate was wrong.
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "bindings/infer.h"
#include "bindings/plan_spec.h"
#include "bindings/routing.h"
#include "bindings/run.h"
#include "engine/analysis/served_batch.h"
#include "engine/base/limits.h"
#include "engine/exec/results/expert_offload.h"
#include "engine/graph/op_def.h"
#include "engine/ops/swap_in.h"
#include "engine/routing/token_classes.h"
#include "engine/run.h"
#include "engine/sim/routed_batches.h"

namespace moe::lua {
namespace {

using nlohmann::json;

constexpr const char* kTraceType = "inference trace";

RoutingQuery query_of(const Fields& fields) {
  return {.step = fields.integer("step") - 1,
          .ranks = fields.integer("ranks"),
          .tokens = fields.integer("tokens"),
          .experts = fields.integer("experts"),
          .k = fields.integer("k")};
}

std::shared_ptr<const RoutingModel> required_routing(lua_State* L) {
  auto routing = routing_in(L, 1);
  MOE_CHECK(routing != nullptr,
            "core.lina_trace or core.lina_locality: the field `routing` is null; it must be a "
            "routing model");
  return routing;
}

/// The batches of a routing model, which several simulations can use.
struct TraceHandle {
  std::shared_ptr<RoutedBatches> batches;
  int64_t first = 0, num = 0;  // first step of the routing model, and number of steps
};

ProfileSpec profile_spec(const Fields& fields, const RoutingQuery& first) {
  return {.first = first,
          .layers = fields.integer("layers"),
          .batches = fields.integer("profile_batches"),
          .path = fields.integer("path"),
          .keep = fields.integer("keep", 0),
          .shorter = fields.flag("shorter", false)};
}

int64_t num_paths(const PathProfile& profile) {
  int64_t paths = 0;
  for (int64_t m = 0; m < profile.options().layers; ++m) paths += profile.num_paths(m);
  return paths;
}

/// Returns the largest number of tokens of one rank that choose the same expert, over all batches.
int64_t most_rows(TraceHandle& trace) {
  int64_t most = 1;
  for (int64_t i = 0; i < trace.num; ++i) {
    for (const ExpertCounts& loads : trace.batches->at(trace.first + i).loads) {
      most = std::max(most, *std::max_element(loads.rows.begin(), loads.rows.end()));
    }
  }
  return most;
}

// ({ routing, step from 1, ranks, tokens, experts, k, layers, path, keep, shorter, profile_batches,
// batches }) -> the handle of the batches after the profiled ones, { paths = number of profiled
// paths, most_rows }. path, keep and shorter: as in PathOptions (placement/path_profile.h).
int trace(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1, true);
  const Fields fields(values, "moe.lina.trace");
  const auto routing = required_routing(L);
  TraceHandle made{.num = fields.integer("batches")};
  json info;
  {
    const Host::EngineCall call(Host::of(L));
    const ProfileSpec spec = profile_spec(fields, query_of(fields));
    const auto profile = std::make_shared<const PathProfile>(profile_paths(*routing, spec));
    made.first = spec.first.step + spec.batches;
    made.batches = std::make_shared<RoutedBatches>(routing, spec.first, spec.layers, profile);
    made.batches->take(made.first, made.num);
    info = {{"paths", num_paths(*profile)}, {"most_rows", most_rows(made)}};
  }
  push_kept<TraceHandle>(L, kTraceType, std::move(made));
  push_json(L, info);
  return 2;
}

// ({ trace = file, path, keep, shorter, step from 1, batches or 0 for all from `step` on }) -> the
// profile's handle, { paths = number of paths, layers, experts, batches }. path etc.: PathOptions
int popularity(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  const Fields f(values, "moe.lina.popularity");
  const Host::EngineCall call(Host::of(L));
  const std::shared_ptr<const Trace> trace = trace_in(L, f.text("trace")).trace;
  const int64_t first = f.integer("step") - 1, batches = f.integer("batches");
  if (trace->choices.empty()) {
    throw user_error(
        "trace: {} has only counts of choices, but paths need the choices of each token; give a "
        "trace that has them",
        f.text("trace"));
  }
  if (first >= trace->steps) {
    throw user_error("step: {} is not allowed; the trace has {} steps, give one of them", first + 1,
                     trace->steps);
  }
  ProfileSpec spec{.first = {.step = first,
                             .ranks = trace->ranks,
                             .tokens = trace->tokens,
                             .experts = trace->experts,
                             .k = trace->k},
                   .layers = trace->layers,
                   .batches = batches > 0 ? batches : trace->steps - first,
                   .path = f.integer("path"),
                   .keep = f.integer("keep"),
                   .shorter = f.flag("shorter", false)};
  const auto made =
      std::make_shared<const PathProfile>(profile_paths(routing_of(trace, "trace", false), spec));
  push_kept<ProfileHandle>(L, kProfileType, made);
  push_json(L, {{"paths", num_paths(*made)},
                {"layers", spec.layers},
                {"experts", trace->experts},
                {"batches", spec.batches}});
  return 2;
}

TwoPhaseOptions place_options(const Fields& fields) {
  return {.cap = fields.integer("cap"),
          .seed = static_cast<uint64_t>(fields.integer("seed")),
          .weighted = fields.text("share") == "weighted"};
}

/// Number of estimates of an MoE layer's most popular experts, and of the right ones (`held`).
struct Accuracy {
  int64_t estimated = 0, held = 0;
  double share() const { return static_cast<double>(held) / static_cast<double>(estimated); }
};

/// Returns the accuracy for each MoE layer; `estimated` is 0 where the plan has no op that
/// estimates.
std::vector<Accuracy> accuracy_of(const Plan& plan, TraceHandle& trace, Compare compare) {
  std::vector<Accuracy> all(static_cast<size_t>(trace.batches->num_layers()));
  for (const Op& op : plan.graph.ops()) {
    if (!op.kind.valid() || plan.graph.def(op).moe != MoeOp::kExpect) continue;
    const auto m = static_cast<size_t>(attr_int(op, "layer_number"));
    const bool normalise = attr_int(op, "normalise") != 0;
    for (int64_t i = 0; i < trace.num; ++i) {
      const RoutedBatch& batch = trace.batches->at(trace.first + i);
      if (batch.estimates[m].mass.empty()) continue;  // too few layers before it for a path
      std::vector<int64_t> counts;
      for (int64_t e = 0; e < batch.loads[m].experts; ++e) {
        counts.push_back(batch.loads[m].of_expert(e));
      }
      const auto wanted = wanted_devices(batch.estimates[m], plan.spec.num_ranks, normalise);
      ++all[m].estimated;
      all[m].held += estimate_holds(wanted, counts, trace.batches->sizes().k, compare) ? 1 : 0;
    }
  }
  return all;
}

void add_accuracy(const std::vector<Accuracy>& layers, bool fine_tunes, json& out) {
  Accuracy all;
  out["accuracy_by_layer"] = json::array();
  for (size_t m = 0; m < layers.size(); ++m) {
    if (layers[m].estimated == 0) continue;
    out["accuracy_by_layer"].push_back({{"layer", m + 1}, {"accuracy", layers[m].share()}});
    all.estimated += layers[m].estimated;
    all.held += layers[m].held;
  }
  if (all.estimated == 0) return;
  out["accuracy"] = all.share();
  out["fine_tuning"] = fine_tunes ? 1 - all.share() : 0.0;
}

/// Adds to `out` the durations of phase 2 in the first MoE layer that has it: resume_ms if experts
/// stay where phase 1 placed them, rerun_ms if they are placed again. Adds nothing without phase 2.
void add_phase_2(const Plan& plan, json& out) {
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (plan.graph.removed(id) || !is(plan.graph, id, MoeOp::kFineTune)) continue;
    const TensorId loads = input_of(plan.graph, plan.graph.op(id), Role::kLoads);
    const CostModel& cost = *plan.spec.cost;
    const Nanoseconds exchange = cost.op_ns(plan.graph, plan.graph.producers()[loads.index()]);
    const auto ms = [&](bool again) {
      return to_ms(exchange + cost.routed_ns(plan.graph, id, {.work = {.again = again}}));
    };
    out["resume_ms"] = ms(false);
    out["rerun_ms"] = ms(true);
    return;
  }
}

/// Returns how many copies of experts are made to devices in a batch: in phase 1, and in phase 2
/// those that the device does not have from phase 1. An expert counts once per device.
int64_t num_loaded(const Plan& plan, const std::vector<OffloadRecord>& records) {
  int64_t count = 0;
  for (const OffloadRecord& record : records) {
    const PlacementBounds bounds = offloaded_bounds(plan, record.layer);
    const Placement in_force = Placement::decode(bounds, record.in_force);
    std::optional<Placement> expected;
    if (!record.expected.empty()) expected = Placement::decode(bounds, record.expected);
    for (int64_t d = 0; d < bounds.devices; ++d) {
      if (expected) count += ops::num_loaded(*expected, nullptr, d);
      count += ops::num_loaded(in_force, expected ? &*expected : nullptr, d);
    }
  }
  return count;
}

/// The results of a simulation: percentiles over batches (layer, a2a and expert: over all layers of
/// all batches), and per batch the mean of phase2, waits and swapped.
json served_json(const Plan& plan, const RunResult& result) {
  std::vector<Nanoseconds> batch, layer, a2a, expert;
  TimeSum phase2, mapping_wait, swap_wait;
  double swapped = 0;
  json batches = json::array();
  for (const Timeline& timeline : result.timelines) {
    const ServedBatch served = served_batch(plan, timeline);
    batch.push_back(served.answer_ns);
    batches.push_back(to_ms(served.answer_ns));
    for (const ServedTimes& one : served.layers) {
      layer.push_back(one.layer_ns);
      a2a.push_back(one.a2a_ns);
      expert.push_back(one.expert_ns);
      phase2 += one.phase2_ns;
      mapping_wait += one.mapping_wait_ns;
      swap_wait += one.swap_wait_ns;
    }
  }
  for (const auto& records : result.offloads) {
    swapped += static_cast<double>(num_loaded(plan, records));
  }
  const auto num = static_cast<double>(batch.size());
  return {{"batch_ms", batches},
          {"median_ms", to_ms(percentile(batch, 0.5))},
          {"p95_ms", to_ms(percentile(batch, 0.95))},
          {"layer_median_ms", to_ms(percentile(layer, 0.5))},
          {"layer_p95_ms", to_ms(percentile(layer, 0.95))},
          {"a2a_median_ms", to_ms(percentile(a2a, 0.5))},
          {"a2a_p95_ms", to_ms(percentile(a2a, 0.95))},
          {"expert_p95_ms", to_ms(percentile(expert, 0.95))},
          {"phase2_ms", phase2.ms() / num},
          {"mapping_wait_ms", mapping_wait.ms() / num},
          {"swap_wait_ms", swap_wait.ms() / num},
          {"swapped", swapped / num}};
}

// (trace, plan, name of a Compare) -> a table that served_json, add_accuracy and add_phase_2 fill
// from a simulation of the plan
int inference(lua_State* L) {
  Host& host = Host::of(L);
  TraceHandle& trace = check_userdata<TraceHandle>(L, 1, kTraceType);
  const Plan& plan = *check_userdata<PlanHandle>(L, 2, kPlanType).plan;
  const Compare compare = compare_named(luaL_checkstring(L, 3));
  json out;
  {
    const Host::EngineCall call(host);
    RunOptions options;
    options.steps = trace.num;
    options.first_step = trace.first;
    options.infer.batches = trace.batches;
    RunResult result = run(plan, "simulate", options);
    // If all batches are equal, only one was simulated.
    result.timelines.resize(static_cast<size_t>(trace.num), result.timelines.front());
    out = served_json(plan, result);
    const bool fine_tunes = !result.offloads.empty() && result.offloads[0][0].fine_tunes;
    add_accuracy(accuracy_of(plan, trace, compare), fine_tunes, out);
    add_phase_2(plan, out);
  }
  push_json(L, out);
  return 1;
}

// ({ popularity[expert], devices, cap, seed, share }) -> { holders[expert] = devices,
// experts[device] = experts }, numbers from 1. cap, seed and share: as in TwoPhaseOptions.
int place(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields fields(values, "moe.lina.place");
  const auto wanted = fields.value().at("popularity").get<std::vector<double>>();
  const int64_t devices = fields.integer("devices");
  const Placement placement = place_by_popularity(wanted, devices, place_options(fields));
  json holders = json::array(), experts = json::array();
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    holders.push_back(placement.holders(e));
    for (json& device : holders.back()) device = device.get<int64_t>() + 1;
  }
  for (int64_t d = 0; d < devices; ++d) {
    experts.push_back(json::array());
    for (int64_t s = 0; s < placement.bounds().slots(); ++s) {
      if (placement.at(d, s) >= 0) experts.back().push_back(placement.at(d, s) + 1);
    }
  }
  push_json(L, {{"holders", holders}, {"experts", experts}});
  return 1;
}

std::vector<ExpertCounts> transitions_of_choices(const json& choices, int64_t experts) {
  std::vector<ExpertCounts> all;
  std::vector<int32_t> before;
  for (const json& layer : choices) {
    std::vector<int32_t> chosen;
    for (const json& e : layer) chosen.push_back(static_cast<int32_t>(e.get<int64_t>() - 1));
    if (!before.empty()) {
      all.emplace_back(experts, experts);
      add_transitions(before, chosen, all.back());
    }
    before = std::move(chosen);
  }
  return all;
}

// ({ experts, top, and either choices[layer][token], or routing, step, ranks, tokens, k, layers and
// batches }) -> { layers = { { layer (from 2), share } }, share, tokens }. share[n], n = 1 to top,
// is that of moe::locality for the n most frequent next experts: per layer, and of all `tokens`.
int locality(lua_State* L) {
  const json values = to_json(L, 1, true);
  const Fields fields(values, "moe.lina.locality");
  const int64_t experts = fields.integer("experts"), top = fields.integer("top");
  std::vector<ExpertCounts> all;
  if (fields.has("choices")) {
    all = transitions_of_choices(fields.value().at("choices"), experts);
  } else {
    const auto routing = required_routing(L);
    const Host::EngineCall call(Host::of(L));
    all = transitions(*routing, query_of(fields), fields.integer("batches"),
                      fields.integer("layers"));
  }
  const auto shares = [&](const ExpertCounts& loads) {
    json out = json::array();
    for (int64_t n = 1; n <= top; ++n) out.push_back(moe::locality(loads, n));
    return out;
  };
  json layers = json::array();
  std::vector<double> sum(static_cast<size_t>(top));
  int64_t layer = 2, tokens = 0;
  for (const ExpertCounts& loads : all) {
    layers.push_back({{"layer", layer++}, {"share", shares(loads)}});
    tokens += loads.total();
    for (size_t n = 0; n < sum.size(); ++n) {
      sum[n] += layers.back()["share"][n].get<double>() * static_cast<double>(loads.total());
    }
  }
  for (double& n : sum) n = tokens > 0 ? n / static_cast<double>(tokens) : 0;
  push_json(L, {{"layers", layers}, {"share", sum}, {"tokens", tokens}});
  return 1;
}

// ({ classes, skew, ratio, stray, drift, seed }), the fields of TokenClasses -> routing model, its
// name with these values: "classes(classes=4,skew=1,...)"
int make_token_classes(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields fields(values, "moe.lina.token_classes");
  push_routing(L, token_classes({.classes = fields.integer("classes"),
                                 .skew = fields.number("skew"),
                                 .ratio = fields.number("ratio"),
                                 .stray = fields.number("stray"),
                                 .drift = fields.number("drift"),
                                 .seed = static_cast<uint64_t>(fields.integer("seed"))}));
  return 2;
}

}  // namespace

void open_lina(lua_State* L) {
  static constexpr luaL_Reg kFunctions[] = {
      {"lina_inference", core_function<inference>},
      {"lina_locality", core_function<with_effect<locality>>},
      {"lina_place", core_function<with_effect<place>>},
      {"lina_popularity", core_function<popularity>},
      {"lina_token_classes", core_function<make_token_classes>},
      {"lina_trace", core_function<trace>},
      {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
  new_inner_type<TraceHandle>(L, kTraceType);
  new_inner_type<ProfileHandle>(L, kProfileType);
}

}  // namespace moe::lua
