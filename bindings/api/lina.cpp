// core.lina_trace, _inference, _place, _locality, _popularity: Lina's inference scheduler as
// functions.
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "bindings/infer.h"
#include "bindings/plan_spec.h"
#include "bindings/routing.h"
#include "engine/base/limits.h"
#include "engine/routing/token_classes.h"
#include "engine/sim/inference.h"

namespace moe::lua {
namespace {

using nlohmann::json;

constexpr const char* kTraceType = "inference trace";
constexpr double kMs = 1e6;  // in ns

RoutingQuery query_of(const Fields& fields) {
  return {.step = fields.integer("step") - 1,
          .ranks = fields.integer("ranks"),
          .tokens = fields.integer("tokens"),
          .experts = fields.integer("experts"),
          .k = fields.integer("k")};
}

std::shared_ptr<const RoutingLaw> required_law(lua_State* L) {
  auto law = law_in(L, 1);
  MOE_CHECK(law != nullptr, "the library requires routing");
  return law;
}

// ({ routing, step from 1, ranks, tokens, experts, k, layers, path, keep, shorter, profile_batches,
// batches }) -> trace, { paths }
int trace(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1, true);
  const Fields fields(values, "moe.lina.trace");
  const auto law = required_law(L);
  const TraceSpec spec{.first = query_of(fields),
                       .layers = fields.integer("layers"),
                       .profile_batches = fields.integer("profile_batches"),
                       .batches = fields.integer("batches"),
                       .path = fields.integer("path"),
                       .keep = fields.integer("keep", 0),
                       .shorter = fields.flag("shorter", false)};
  InferenceTrace made;
  {
    const Host::EngineCall call(Host::of(L));
    made = trace_inference(*law, spec);
  }
  const int64_t paths = made.paths;
  push_kept<InferenceTrace>(L, kTraceType, std::move(made));
  push_json(L, {{"paths", paths}});
  return 2;
}

// ({ trace = file, path, keep or 0, shorter, step from 1, batches or 0 for all behind it }) -> the
// profile, { paths, layers, experts, batches }
int popularity(lua_State* L) {
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  const Fields f(values, "moe.lina.popularity");
  const Host::EngineCall call(Host::of(L));
  const std::shared_ptr<const Trace> trace = trace_in(L, f.text("trace")).trace;
  const int64_t first = f.integer("step") - 1, batches = f.integer("batches");
  if (trace->choices.empty()) {
    throw user_error("trace: {} has counts alone; paths need every token's choices",
                     f.text("trace"));
  }
  if (first >= trace->steps) {
    throw user_error("step: {} of a trace of {}", first + 1, trace->steps);
  }
  const TraceSpec spec{.first = {.step = first,
                                 .ranks = trace->ranks,
                                 .tokens = trace->tokens,
                                 .experts = trace->experts,
                                 .k = trace->k},
                       .layers = trace->layers,
                       .profile_batches = batches > 0 ? batches : trace->steps - first,
                       .path = f.integer("path"),
                       .keep = f.integer("keep"),
                       .shorter = f.flag("shorter", false)};
  const auto made =
      std::make_shared<const PathProfile>(profile_paths(law_of(trace, "trace", false), spec));
  int64_t paths = 0;
  for (int64_t layer = 0; layer < spec.layers; ++layer) paths += made->num_paths(layer);
  push_kept<ProfileBox>(L, kProfileType, made);
  push_json(L, {{"paths", paths},
                {"layers", spec.layers},
                {"experts", trace->experts},
                {"batches", spec.profile_batches}});
  return 2;
}

TwoPhaseOptions place_options(const Fields& fields) {
  return {.cap = fields.integer("cap"),
          .seed = static_cast<uint64_t>(fields.integer("seed")),
          .weighted = fields.text("share") == "weighted"};
}

InferenceSpec inference_spec(const Fields& fields) {
  InferenceSpec spec{.model = model_of(fields.at("model")),
                     .cluster = cluster_of(fields.at("cluster")),
                     .system = inference_system(fields.text("system")),
                     .normalise = fields.flag("normalise", false),
                     .compare = compare_named(fields.text("compare")),
                     .place = place_options(fields)};
  const Nanoseconds place_ns = fields.time("place_ms", kMs);
  const double host = fields.number("host_bytes_per_s");
  spec.times = closed_form_times(spec.cluster, spec.model.experts, place_ns, host, spec.place);
  spec.times.resume_ns = fields.time("resume_ms", kMs, spec.times.resume_ns);
  spec.times.rerun_ns = fields.time("rerun_ms", kMs, spec.times.rerun_ns);
  return spec;
}

json accuracy_json(const InferenceResult& result) {
  json layers = json::array();
  for (int64_t m = 0; m < result.num_layers; ++m) {
    int64_t estimated = 0, held = 0;
    for (size_t i = static_cast<size_t>(m); i < result.layers.size();
         i += static_cast<size_t>(result.num_layers)) {
      estimated += result.layers[i].estimated ? 1 : 0;
      held += result.layers[i].held ? 1 : 0;
    }
    if (estimated == 0) continue;
    layers.push_back({{"layer", m + 1},
                      {"accuracy", static_cast<double>(held) / static_cast<double>(estimated)}});
  }
  return layers;
}

double mean_ms(const TimeSum& sum, size_t batches) {
  return sum.ms() / static_cast<double>(batches);
}

/// What happened to the layers, and over all batches alike.
json layers_json(const InferenceResult& result) {
  std::vector<Nanoseconds> layer, a2a, expert;
  TimeSum phase2, mapping_wait, swap_wait;
  int64_t swapped = 0;
  int64_t estimated = 0, held = 0, rerun = 0;
  for (const InferenceLayer& one : result.layers) {
    layer.push_back(one.layer_ns);
    a2a.push_back(one.a2a_ns);
    expert.push_back(one.expert_ns);
    estimated += one.estimated ? 1 : 0;
    held += one.held ? 1 : 0;
    rerun += one.rerun ? 1 : 0;
    phase2 += one.phase2_ns;
    mapping_wait += one.mapping_wait_ns;
    swap_wait += one.swap_wait_ns;
    swapped += one.swapped;
  }
  const size_t batches = result.batch_ns.size();
  json out = {{"layer_median_ms", to_ms(percentile(layer, 0.5))},
              {"layer_p95_ms", to_ms(percentile(layer, 0.95))},
              {"a2a_median_ms", to_ms(percentile(a2a, 0.5))},
              {"a2a_p95_ms", to_ms(percentile(a2a, 0.95))},
              {"expert_p95_ms", to_ms(percentile(expert, 0.95))},
              {"phase2_ms", mean_ms(phase2, batches)},
              {"mapping_wait_ms", mean_ms(mapping_wait, batches)},
              {"swap_wait_ms", mean_ms(swap_wait, batches)},
              {"swapped", static_cast<double>(swapped) / static_cast<double>(batches)}};
  if (estimated > 0) {
    out["accuracy"] = static_cast<double>(held) / static_cast<double>(estimated);
    out["fine_tuning"] = static_cast<double>(rerun) / static_cast<double>(estimated);
  }
  return out;
}

// (trace, { model, cluster, system, normalise, compare, cap, seed, place_ms, host_bytes_per_s,
// resume_ms and rerun_ms, else by closed form }) -> the result
int inference(lua_State* L) {
  Host::of(L).end_loading();
  const InferenceTrace& made = check_userdata<InferenceTrace>(L, 1, kTraceType);
  const json values = to_json(L, 2, true);
  const InferenceSpec spec = inference_spec(Fields(values, "moe.lina.inference"));
  InferenceResult result;
  {
    const Host::EngineCall call(Host::of(L));
    result = simulate_inference(made, spec);
  }
  json out = layers_json(result);
  out["median_ms"] = to_ms(percentile(result.batch_ns, 0.5));
  out["p95_ms"] = to_ms(percentile(result.batch_ns, 0.95));
  out["batch_ms"] = json::array();
  for (const Nanoseconds ns : result.batch_ns) out["batch_ms"].push_back(to_ms(ns));
  out["accuracy_by_layer"] = accuracy_json(result);
  out["resume_ms"] = to_ms(spec.times.resume_ns);
  out["rerun_ms"] = to_ms(spec.times.rerun_ns);
  push_json(L, out);
  return 1;
}

// ({ popularity, devices, cap, seed }) -> { holders, experts }, numbers from 1
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

std::vector<Loads> transitions_of_choices(const json& choices, int64_t experts) {
  std::vector<Loads> all;
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

// ({ experts, top, and choices by layer and token, or routing, step, ranks, tokens, k, layers,
// batches }) -> { layers = { { layer, share } }, share }
int locality(lua_State* L) {
  const json values = to_json(L, 1, true);
  const Fields fields(values, "moe.lina.locality");
  const int64_t experts = fields.integer("experts"), top = fields.integer("top");
  std::vector<Loads> all;
  if (fields.has("choices")) {
    all = transitions_of_choices(fields.value().at("choices"), experts);
  } else {
    const auto law = required_law(L);
    const Host::EngineCall call(Host::of(L));
    all = transitions(*law, query_of(fields), fields.integer("batches"), fields.integer("layers"));
  }
  const auto shares = [&](const Loads& loads) {
    json out = json::array();
    for (int64_t n = 1; n <= top; ++n) out.push_back(moe::locality(loads, n));
    return out;
  };
  json layers = json::array();
  std::vector<double> sum(static_cast<size_t>(top));
  int64_t layer = 2, tokens = 0;
  for (const Loads& loads : all) {
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

// ({ classes, skew, ratio, stray, drift, seed }) -> law, its full name
int make_token_classes(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields fields(values, "moe.lina.token_classes");
  push_law(L, token_classes({.classes = fields.integer("classes"),
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
  static constexpr luaL_Reg kMethods[] = {{nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
  new_type<InferenceTrace>(L, kTraceType, kMethods);
  new_type<ProfileBox>(L, kProfileType, kMethods);
}

}  // namespace moe::lua
