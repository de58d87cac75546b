#include "bindings/plan_spec.h"

#include <algorithm>
#include <optional>

#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/names.h"
#include "bindings/policy/gate.h"
#include "bindings/policy/graph_session.h"
#include "bindings/policy/placement.h"
#include "bindings/routing.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/device/executor.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/plugin.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_profiler.h"
#include "engine/profile/profiler.h"
#include "engine/profile/rehearsal.h"

namespace moe::lua {
namespace {

constexpr double kUs = 1e3;  // in ns

LinkSpec link_of(const Fields& link) {
  return {link.number("bytes_per_s"), link.time("latency_us", kUs, 0)};
}

DType dtype_of(const std::string& name) {
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "f32") return DType::kF32;
  throw user_error("model.dtype: '{}' is not allowed; give f16, bf16 or f32", name);
}

StageKind kind_of(const std::string& name) {
  return parse_enum<StageKind>("kind of stage", name, static_cast<int>(StageKind::kSchedule) + 1,
                               stage_kind_name);
}

// Options that a built-in pass reads; other values belong to policies and stay in Lua.
Options options_of(const nlohmann::json& values) {
  Options options;
  for (const auto& [key, value] : values.items()) {
    if (value.is_boolean()) options[key] = value.get<bool>();
    if (value.is_number()) options[key] = value.get<double>();
    if (value.is_string()) options[key] = value.get<std::string>();
  }
  return options;
}

// What stages are made with: the plan as far as it is read.
struct StageContext {
  const PlanSpec& spec;
  PlanBox& box;
  std::shared_ptr<PickPolicies> picks;
};

// stage: its values; `index`: its table, for the functions.
Stage stage_of(lua_State* L, int index, const Fields& stage, const StageContext& context) {
  const std::shared_ptr<PickPolicies>& picks = context.picks;
  Stage result;
  result.name = stage.text("name");
  result.kind = kind_of(stage.text("kind"));
  if (stage.has("options")) result.options = options_of(stage.at("options").value());
  if (stage.has("placement")) {
    const auto policy = placement_policy_of(L, stage, context.spec);
    context.box.placement = policy;
    result.transform = [policy](Graph graph, const PassContext& pass) {
      return place_experts(std::move(graph), policy->stage, pass);
    };
    return result;
  }
  lua_getfield(L, index, "apply");
  if (!lua_isfunction(L, -1)) {
    lua_pop(L, 1);
    return result;
  }
  const auto apply = std::make_shared<const Reference>(L);
  lua_getfield(L, index, "options");
  const auto options = std::make_shared<const Reference>(L);
  if (result.kind == StageKind::kSchedule) {
    result.schedule = schedule_policy(L, apply, options, picks->fill, picks);
  } else {
    result.transform = pass_policy(L, apply, options, picks->fill);
  }
  return result;
}

SystemSpec system_of(lua_State* L, int index, const Fields& system, const StageContext& context) {
  SystemSpec result;
  result.name = system.text("name");
  result.reduce_on_own_lane = system.flag("reduce_on_own_lane", false);
  if (system.has("sync")) {
    const Fields sync = system.at("sync");
    result.sync.bucket_bytes = static_cast<Bytes>(sync.number("bucket_bytes", 0));
    result.sync.when_ready = sync.flag("when_ready", true);
  }
  if (!system.has("stages")) return result;
  const nlohmann::json& stages = *system.value().find("stages");
  lua_getfield(L, index, "stages");
  const int table = lua_gettop(L);
  for (size_t i = 0; i < stages.size() && stages.is_array(); ++i) {
    lua_rawgeti(L, table, static_cast<int>(i + 1));
    const Fields stage(stages[i], fmt::format("system.stages[{}]", i + 1));
    result.stages.push_back(stage_of(L, lua_gettop(L), stage, context));
    lua_settop(L, table);
  }
  lua_pop(L, 1);
  return result;
}

// The gates of ranks where they are not built in; null: they are.
std::function<Gate(int64_t rank)> own_gates(lua_State* L, const PlanSpec& spec,
                                            const PlanBox& box) {
  if (spec.law) {
    return [spec](int64_t) { return law_gate(spec.law, spec.model, spec.num_ranks); };
  }
  if (box.gate) return rank_gates(Host::of(L), box.gate);
  return nullptr;
}

// A law that cannot answer for the model is refused here, not in the middle of a run.
void check_law(const PlanSpec& spec) {
  if (spec.model.num_moe_layers() == 0) return;
  spec.law->loads({.layer = spec.model.num_moe_layers() - 1,
                   .ranks = spec.num_ranks,
                   .tokens = spec.model.tokens_per_rank(),
                   .experts = spec.model.experts,
                   .k = spec.gate.k});
}

// Where ops are timed, and by what.
struct Profiler {
  ProfileOp profile;
  std::string key;
  ProfileCost::MeasureHandoff handoff;
  std::optional<kernels::DeviceTable> device;  // where ops are timed on one
};

// device: cost.device, "cpu" or "cuda". bf16: activations as the executor's precision has them.
Profiler profiler_on(const std::string& device, bool bf16, const ProfileOptions& options) {
  if (device == "cpu") {
    return {profile_op, profile_key(options),
            [n = options.ranks_beside] { return profile_handoff(n); }, std::nullopt};
  }
  if (device != "cuda") throw user_error("cost.device: '{}' is not allowed; cpu or cuda", device);
  const std::string missing = cuda_missing();
  if (!missing.empty()) throw user_error("cost.device: cuda: {}", missing);
  const kernels::DeviceTable table = computing_in(bf16, *cuda_plugin().table);
  table.use_device(0);  // the executor's
  const auto profile = [table](const Graph& graph, OpId op, const ProfileOptions& filled) {
    return profile_op_on_device(graph, op, filled, table);
  };
  return {profile, device_profile_key(options, table) + (bf16 ? "; bf16" : ""), nullptr, table};
}

// What the run's transfers, of so many blocks, do to compute beside them.
// options: of as many ranks as share a GPU.
void add_overlap(ProfileCost& cost, const Profiler& profiler, const ProfileOptions& options,
                 const PlanSpec& spec, int32_t blocks, ProfileCache& cache) {
  OverlapOptions overlap = {.profile = options};
  if (std::find(overlap.blocks.begin(), overlap.blocks.end(), blocks) == overlap.blocks.end()) {
    overlap.blocks.push_back(blocks);
  }
  if (cost.network() != nullptr) overlap.bytes_per_s = spec.cluster.nic.bytes_per_s;
  const Graph graph = build_forward(spec.model, spec.gate, spec.num_ranks);
  cost.set_overlap(overlap_table(graph, overlap, cache, profiler.key, *profiler.device), blocks);
}

// Ops profiled on this machine. cost.blocks: of the run's transfers on a GPU, 0 where they have
// none or nobody knows. cost.rehearse: steps that are executed first, 0 for none.
std::shared_ptr<const ProfileCost> profile_of(lua_State* L, const Fields& cost,
                                              const PlanSpec& spec, const PlanBox& box) {
  const HostOptions& host = Host::of(L).options();
  ProfileOptions options;
  options.ranks_beside = spec.num_ranks;
  options.checked = cost.flag("check_finite", true);
  const std::string device = cost.text("device", "cpu");
  const Profiler profiler = profiler_on(device, cost.text("precision", "f32") == "bf16", options);
  const int64_t steps = cost.integer("rehearse", 0);
  if (steps > 0 && device != "cpu") {
    throw user_error("cost.rehearse: {} on {}; steps are rehearsed on cpu only", steps, device);
  }
  const auto cache = std::make_shared<ProfileCache>(cost.text("cache", host.cache));
  const std::string warning = cache->take_warning();
  if (!warning.empty()) std::fprintf(stderr, "moebench: %s\n", printable(warning).c_str());
  const auto cost_on = [&](const Cluster* link, const WorkContext& work) {
    const auto measure = placement_measure(
        gate_measure(profiler.profile, own_gates(L, spec, box), spec.gate.name, options),
        Host::of(L), box.placement, options);
    return std::make_shared<ProfileCost>(cache, profiler.key, measure, link, work,
                                         profiler.handoff);
  };
  const bool emulated = cost.flag("link", false);
  const auto profile = cost_on(emulated ? &spec.cluster : nullptr, spec.work);
  const auto blocks = static_cast<int32_t>(cost.integer("blocks", 0));
  if (blocks > 0 && profiler.device) {
    ProfileOptions shared = options;
    if (job_of(Host::of(L)) != nullptr) shared.ranks_beside = 1;
    add_overlap(*profile, profiler, shared, spec, blocks, *cache);
  }
  if (steps > 0) {
    PlanSpec plain = rehearsal_spec(spec, emulated);
    const auto alone = cost_on(emulated ? &plain.cluster : nullptr, plain.work);
    plain.cost = alone;
    RehearsalOptions rehearsal = {
        .steps = steps, .emulated = emulated, .check_finite = options.checked};
    rehearsal.time_again = [&](const Graph& graph, OpId op) { alone->time_again(graph, op); };
    if (box.gate) rehearsal.gate = rank_gates(Host::of(L), box.gate);
    profile->set_in_step(rehearsed(plain, rehearsal, *cache, profiler.key));
  }
  return profile;
}

// rows: { {bytes, us}, ... }
InterpolatedTable table_of(const nlohmann::json& rows) {
  std::vector<std::pair<double, double>> points;
  for (const nlohmann::json& row : rows)
    points.emplace_back(row.at(0), row.at(1).get<double>() * 1e3);
  return InterpolatedTable(std::move(points));
}

// Times of collectives that take the place of the closed forms.
std::map<Collective, InterpolatedTable> tables_of(const Fields& cluster) {
  std::map<Collective, InterpolatedTable> tables;
  if (!cluster.has("collectives")) return tables;
  const Fields given = cluster.at("collectives");
  for (const auto& [name, kind] : {std::pair("all_to_all", Collective::kAllToAll),
                                   std::pair("all_reduce", Collective::kAllReduce)}) {
    if (given.has(name)) tables.emplace(kind, table_of(given.at(name).value().at("rows")));
  }
  return tables;
}

// What ops on swapped experts take in place of their work.
SwapTimes swap_times_of(const Fields& cost) {
  SwapTimes times;
  if (!cost.has("swaps")) return times;
  const Fields swaps = cost.at("swaps");
  for (const auto& [name, time] : {std::pair("place_ms", &times.place_ns),
                                   {"resume_ms", &times.resume_ns},
                                   {"rerun_ms", &times.rerun_ns}}) {
    if (swaps.has(name)) *time = swaps.time(name, 1e6);
  }
  times.host_bytes_per_s = swaps.number("host_bytes_per_s");
  return times;
}

}  // namespace

ModelSpec model_of(const Fields& model) {
  ModelSpec m;
  m.name = model.text("name", m.name);
  m.vocab = model.integer("vocab");
  m.layers = model.integer("layers");
  m.hidden = model.integer("hidden");
  m.heads = model.integer("heads");
  m.seq = model.integer("seq");
  m.ffn = model.integer("ffn", 0);
  m.batch_per_device = model.integer("batch_per_device");
  m.experts = model.integer("experts");
  m.ep = model.integer("ep", 0);
  m.moe_every = model.integer("moe_every", m.moe_every);
  m.gate = model.text("gate");
  m.k = model.integer("k", 1);
  m.capacity_factor = model.number("capacity_factor", 0);
  if (model.has("balance_loss")) {
    const Fields loss = model.at("balance_loss");
    m.balance_loss = {loss.number("coefficient"), loss.text("count"), loss.text("over") == "all"};
  }
  m.z_loss = model.number("z_loss", 0);
  if (model.has("bias_balance")) m.bias_rate = model.at("bias_balance").number("rate");
  m.fused_attention = model.flag("fused_attention", true);
  m.dtype = dtype_of(model.text("dtype", "f32"));
  return m;
}

Cluster cluster_of(const Fields& cluster) {
  Cluster c;
  c.name = cluster.text("name", c.name);
  c.nodes = cluster.integer("nodes");
  c.devices_per_node = cluster.integer("devices_per_node");
  const Fields device = cluster.at("device");
  c.device.name = device.text("name", c.device.name);
  c.device.gemm_flops_per_s = device.number("gemm_flops_per_s");
  c.device.vector_flops_per_s = device.number("vector_flops_per_s");
  c.device.memory_bytes_per_s = device.number("memory_bytes_per_s");
  c.device.launch_ns = device.time("launch_us", kUs, 0);
  c.device.memory_bytes = static_cast<Bytes>(device.number("memory_bytes", 0));
  c.intra = link_of(cluster.at("intra"));
  c.nic = link_of(cluster.at("nic"));
  c.nics_per_node = cluster.integer("nics_per_node", 1);
  c.a2a_base_ns = cluster.time("a2a_base_us", kUs, 0);
  c.a2a_per_peer_ns = cluster.time("a2a_per_peer_us", kUs, 0);
  if (cluster.has("share")) c.share = share_named(cluster.text("share"));
  c.sharing_efficiency = cluster.number("sharing_efficiency", c.sharing_efficiency);
  if (cluster.has("overlap_slowdown")) {
    const Fields slowdown = cluster.at("overlap_slowdown");
    c.overlap_slowdown = {slowdown.number("gemm", 1), slowdown.number("memory", 1)};
  }
  return c;
}

namespace {

OptimizerSpec optimizer_of(const Fields& fields) {
  OptimizerSpec optimizer;
  optimizer.lr = fields.number("lr");
  if (fields.text("name") == "adamw") {
    optimizer.kind = OptimizerKind::kAdamw;
    optimizer.beta1 = fields.number("beta1");
    optimizer.beta2 = fields.number("beta2");
    optimizer.eps = fields.number("eps");
    optimizer.weight_decay = fields.number("weight_decay");
  } else {
    optimizer.momentum = fields.number("momentum");
  }
  return optimizer;
}

/// Field gate of the table at `index`, the law of its routing, or the model's own gate.
void set_gate(lua_State* L, int index, const Fields& fields, PlanSpec& spec, PlanBox& box) {
  spec.law = law_in(L, index);
  if (spec.law) {
    spec.gate = gate_spec(spec.model, law_gate(spec.law, spec.model, spec.num_ranks));
    check_law(spec);
  } else if (fields.has("gate")) {
    lua_getfield(L, index, "gate");
    box.gate = gate_policy_of(L, lua_gettop(L), fields.at("gate"), spec.model);
    lua_pop(L, 1);
    spec.gate = box.gate->spec;
  } else {
    spec.gate = gate_spec(spec.model);
  }
}

}  // namespace

PlanSpec plan_spec_of(lua_State* L, int index, PlanBox& box) {
  const nlohmann::json values = to_json(L, index, true);
  const Fields fields(values, "plan");
  PlanSpec spec;
  spec.model = model_of(fields.at("model"));
  spec.num_ranks = fields.integer("ranks");
  spec.cluster = cluster_of(fields.at("cluster"));
  spec.work.fill = fields.number("fill", 1);
  spec.element_bytes = fields.integer("element_bytes", 0);
  spec.inference = fields.flag("inference", false);
  if (fields.has("optimizer")) spec.optimizer = optimizer_of(fields.at("optimizer"));
  set_gate(L, index, fields, spec, box);
  lua_getfield(L, index, "system");
  const auto picks = std::make_shared<PickPolicies>(PickPolicies{.fill = spec.work.fill});
  box.picks = picks;
  spec.system = system_of(L, lua_gettop(L), fields.at("system"), {spec, box, picks});
  lua_pop(L, 1);
  const Fields cost = fields.at("cost");
  if (fields.has("ways")) {
    for (const auto& [attribute, way] : fields.at("ways").value().items()) {
      spec.ways[attribute] = way.get<std::string>();
    }
  }
  if (fields.has("edits")) {
    const Fields edits = fields.at("edits");
    spec.edits = {.fuse_gelu = edits.flag("fuse_gelu", false),
                  .round_once = edits.flag("round_once", false)};
  }
  // Where others plan, nothing is measured here.
  if (cost.text("kind") == "profile" && speaks(Host::of(L))) {
    box.profile = profile_of(L, cost, spec, box);
    spec.cost = box.profile;
    spec.quickest_ways = cost.text("device", "cpu") == "cuda";
  } else if (cost.text("kind") == "none") {
    spec.cost = std::make_shared<NoTimes>(spec.cluster);
  } else {
    spec.cost = std::make_shared<RooflineCost>(
        spec.cluster, spec.work, tables_of(fields.at("cluster")), swap_times_of(cost));
  }
  return spec;
}

}  // namespace moe::lua
