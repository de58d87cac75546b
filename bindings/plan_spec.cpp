#include "bindings/plan_spec.h"

#include <cstdio>
#include <optional>

#include "bindings/dispatch.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/policy/gate.h"
#include "bindings/policy/graph_session.h"
#include "bindings/policy/model.h"
#include "bindings/policy/placement.h"
#include "bindings/routing.h"
#include "bindings/run.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"
#include "engine/cost/dispatch_cost.h"
#include "engine/cost/stack.h"
#include "engine/model/stages.h"
#include "engine/pipeline/table.h"
#include "engine/profile/predict.h"
#include "engine/routing/workload.h"
#include "engine/sim/routed_step.h"

namespace moe::lua {
namespace {

DType dtype_of(const std::string& name) {
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "f32" || name == "tf32") return DType::kF32;  // tf32 differs in rates alone
  throw user_error("model.dtype: '{}' is not allowed; give f16, bf16, f32 or tf32", name);
}

// Returns the options that a built-in pass can read; tables are for policies in Lua, and left out.
Options options_of(const nlohmann::json& values) {
  Options options;
  for (const auto& [key, value] : values.items()) {
    if (value.is_boolean()) options[key] = value.get<bool>();
    if (value.is_number()) options[key] = value.get<double>();
    if (value.is_string()) options[key] = value.get<std::string>();
  }
  return options;
}

// Returns the facts of a list of names; none where the list is absent.
Facts facts_of(const Fields& stage, const char* key) {
  Facts facts;
  if (!stage.has(key)) return facts;
  for (const auto& name : *stage.value().find(key)) {
    facts.push_back(value_named<Fact>("fact", name.get<std::string>()));
  }
  return facts;
}

/// Returns the choices of 8,192 tokens of one group of ranks: those of the plan's routing in the
/// first layer of its first micro-batch, where it knows choices and not their numbers alone; else
/// drawn ones.
dispatch::Choices expected_choices(const dispatch::Exchange& exchange, const PlanSpec& spec) {
  dispatch::Choices choices = dispatch::sampled_choices(exchange);
  if (!spec.routing || !spec.routing->route) return choices;
  const RoutingQuery query{.ranks = spec.num_ranks,
                           .tokens = spec.model->tokens_per_rank(),
                           .experts = spec.model->experts,
                           .k = exchange.topk};
  const int64_t tokens = std::min(query.tokens, choices.first[1]);
  const Group group = spec.model->grid(spec.num_ranks).over(Axis::kEp);
  choices = {{0}, {}};
  for (int64_t place = 0; place < exchange.ranks; ++place) {
    std::vector<int32_t> own(static_cast<size_t>(query.tokens * query.k));
    spec.routing->route(query, group.member(0, place), own);
    choices.experts.insert(choices.experts.end(), own.begin(), own.begin() + tokens * query.k);
    choices.first.push_back(choices.first.back() + tokens);
  }
  return choices;
}

/// Returns the dispatcher that scripts/moe/spec/dispatch_time.lua describes.
std::shared_ptr<const Dispatcher> dispatcher_of(const Fields& fields, const PlanSpec& spec) {
  const auto made = std::make_shared<Dispatcher>();
  made->exchange = exchange_of(fields.at("exchange"));
  read_fields(fields.at("route"), made->route);
  made->route.name = fields.text("name");
  dispatch::check(made->route, made->exchange);
  made->by_links = !fields.has("law_there");
  if (!made->by_links) {
    made->call = {.experts = fields.number("experts_per_rank"),
                  .nodes = static_cast<double>(made->exchange.nodes()),
                  .sms = static_cast<double>(made->route.sms),
                  .nic_bytes_per_s = fields.number("nic"),
                  .nvlink_bytes_per_s = fields.number("nvlink")};
    made->gpu_sms = fields.number("sms");
    read_fields(fields.at("law_there"), made->laws[0]);
    read_fields(fields.at("law_back"), made->laws[1]);
  }
  made->expect(expected_choices(made->exchange, spec));
  return made;
}

// What is needed to make stages. spec: the plan's specification while it is read; only the fields
// that plan_spec_of() reads before "system" are set. handle and picks: what stages add to.
struct StageContext {
  const PlanSpec& spec;
  PlanHandle& handle;
  std::shared_ptr<PickPolicies> picks;
};

// Makes a stage. stage: the values of its Lua table; index: the stack index of that table, which
// also contains functions.
Stage stage_of(lua_State* L, int index, const Fields& stage, const StageContext& context) {
  const std::shared_ptr<PickPolicies>& picks = context.picks;
  Stage result;
  result.name = stage.text("name");
  result.kind = value_named<StageKind>("kind of stage", stage.text("kind"));
  if (stage.has("options")) result.options = options_of(stage.at("options").value());
  if (stage.has("placement")) {
    const auto policy = placement_policy_of(L, stage, context.spec, *picks->view);
    context.handle.placement = policy;
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
  result.needs = facts_of(stage, "needs");
  result.gives = facts_of(stage, "gives");
  if (schedules(result.kind)) {
    result.schedule = schedule_policy(L, apply, options, picks->view, picks);
  } else {
    result.transform = pass_policy(L, apply, options, picks->view);
  }
  return result;
}

SystemSpec system_of(lua_State* L, int index, const Fields& system, const StageContext& context) {
  SystemSpec result;
  result.name = system.text("name");
  if (system.has("all_reduce")) read_fields(system.at("all_reduce"), result.sync);
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

// Room for rows at a device's experts beyond those of its busiest step under the routing: a margin
// for steps that are simulated later, and for placements.
constexpr double kRowsMargin = 1.25;

// Returns the most rows that a device's experts get under plain expert parallelism in one MoE
// layer, as a multiple of the rows of its own tokens. choices: indexed by (source, expert).
double most_rows(const ExpertCounts& choices, const PlanSpec& spec) {
  const int64_t ep = spec.model->ep > 0 ? spec.model->ep : spec.num_ranks;
  int64_t most = 0;
  for (int64_t group = 0; group < spec.num_ranks; group += ep) {
    std::vector<int64_t> rows(static_cast<size_t>(ep));
    for (int64_t source = group; source < group + ep; ++source) {
      for (int64_t e = 0; e < choices.experts; ++e) {
        rows[static_cast<size_t>(e * ep / choices.experts)] += choices.at(source, e);
      }
    }
    most = std::max(most, *std::max_element(rows.begin(), rows.end()));
  }
  return static_cast<double>(most) /
         static_cast<double>(spec.model->tokens_per_rank() * spec.gate.k);
}

// Returns the query of the last layer in the first step.
RoutingQuery last_layer(const PlanSpec& spec) {
  return {.layer = spec.model->num_moe_layers() - 1,
          .ranks = spec.num_ranks,
          .tokens = spec.model->tokens_per_rank(),
          .experts = spec.model->experts,
          .k = spec.gate.k};
}

// Returns the mean of a layer's choices, of which as many get a slot as the plan's capacity allows.
MeanRouting mean_of(const ExpertCounts& choices, const PlanSpec& spec) {
  const int64_t tokens = spec.model->tokens_per_rank(), shared = spec.gate.shared_capacity;
  const ExpertCounts rows = shared > 0 ? kept_rows(choices, shared, spec.model->ranks_per_share())
                                       : kept_rows(choices, spec.gate.capacity);
  const auto all = static_cast<double>(spec.num_ranks * tokens);
  return {.sources = spec.num_ranks,
          .tokens = tokens,
          .choices = static_cast<double>(choices.total()) / all,
          .kept = static_cast<double>(rows.total()) / all};
}

// Returns the mean choices of a routing model, of no sources without MoE layers. Throws UserError
// if the model cannot give choices for the plan's sizes, so that the error comes before a run and
// not in the middle of it.
MeanRouting checked_routing(const PlanSpec& spec) {
  if (spec.model->num_moe_layers() == 0) return {};
  return mean_of(spec.routing->loads(last_layer(spec)), spec);
}

// Returns the cost model that profiles ops on this machine. cost.blocks: CUDA blocks of the run's
// transfers on a GPU, 0 if there are none or the number is not known. cost.rehearse: number of
// steps of the plain program to run before, 0 for none; cost.data: the data of the run; cost.pace:
// RunOptions::pace of the run.
Prediction profile_of(Host& host, const Fields& cost, const PlanSpec& spec,
                      const PlanHandle& handle) {
  PredictOptions options;
  options.device = cost.text("device", options.device);
  options.bf16 = cost.text("precision", "f32") == "bf16";
  options.cache = cost.text("cache", host.options().cache);
  options.emulated = cost.flag("link", false);
  options.check_finite = cost.flag("check_finite", true);
  options.blocks = static_cast<int32_t>(cost.integer("blocks", 0));
  options.gpu_of_one = job_of(host) != nullptr;
  options.rehearse = cost.integer("rehearse", 0);
  options.rehearsals = host.kept<Rehearsals>("rehearsals", [] { return Rehearsals(); }).get();
  if (options.rehearse > 0 && cost.has("data")) {
    const nlohmann::json& data = cost.at("data").value();
    options.tokens_from = data.dump();
    options.tokens = other_tokens(host, cost.at("data"), spec);
  }
  if (handle.gate) options.gate = rank_gates(host, handle.gate);
  if (handle.placement) options.place = rank_placements(host, handle.placement, {});
  options.pace = cost.number("pace", 0);
  Prediction prediction = predicted_cost(spec, options);
  if (!prediction.warning.empty()) {
    std::fprintf(stderr, "moebench: %s\n", printable(prediction.warning).c_str());
  }
  return prediction;
}

// Returns what the gate did in the first rehearsed step, in the last layer.
AssumedRouting rehearsed_routing(const Rehearsal& rehearsal, const PlanSpec& spec,
                                 AssumedRouting assumed) {
  assumed.scores = rehearsal.routing()->name;
  assumed.sample = mean_of(rehearsal.routing()->loads(last_layer(spec)), spec);
  return assumed;
}

// Makes an interpolated table of rows { {bytes, us}, ... }.
InterpolatedTable table_of(const nlohmann::json& rows) {
  std::vector<std::pair<double, double>> points;
  for (const nlohmann::json& row : rows)
    points.emplace_back(row.at(0), row.at(1).get<double>() * 1e3);
  return InterpolatedTable(std::move(points));
}

// Returns the durations, and the rate of copies from the host, that the recipe gives for ops on
// swapped experts; durations replace those that would be computed from the ops' work.
OffloadTimes offload_times_of(const Fields& cost) {
  OffloadTimes times;
  if (!cost.has("swaps")) return times;
  const Fields given = cost.at("swaps");
  for (const auto& [name, time] : {std::pair("place_ms", &times.place_ns),
                                   {"resume_ms", &times.resume_ns},
                                   {"rerun_ms", &times.rerun_ns}}) {
    if (given.has(name)) *time = given.time(name, 1e6);
  }
  if (given.has("host_bytes_per_s")) times.host_bytes_per_s = given.number("host_bytes_per_s");
  return times;
}

template <class Optimizer>
OptimizerSpec optimizer_as(const Fields& fields) {
  Optimizer optimizer;
  read_fields(fields, optimizer);
  return optimizer;
}

OptimizerSpec optimizer_of(const Fields& fields) {
  return fields.text("name") == "adamw" ? optimizer_as<Adamw>(fields) : optimizer_as<Sgd>(fields);
}

/// Returns the type in which the model's linears and experts are multiplied, and its rate.
NarrowProducts narrow_of(const Fields& model, const Fields& cost) {
  const ProductType type = model_of(model).dtypes.products;
  if (type == ProductType::kPlain) return {};
  return {name_of(type), cost.number("fp8_flops_per_s")};
}

/// Returns the cost model under the cluster's stack, which scripts/moe/spec/stack.lua has checked.
std::shared_ptr<const CostModel> under_stack(RooflineCost roofline, const Fields& cluster) {
  if (!cluster.has("stack")) return std::make_shared<RooflineCost>(std::move(roofline));
  const Fields given = cluster.at("stack");
  Stack stack{.name = given.text("name"),
              .host_launch_ns = given.time("host_launch_us", kMicroseconds),
              .host_op_ns = given.time("host_op_us", kMicroseconds),
              .graphs = value_named<Stack::Graphs>("graphs", given.text("graphs"))};
  for (const auto& [op, share] : given.at("memory").value().items()) {
    (op == "others" ? stack.memory_others : stack.memory[op]) = share.get<double>();
  }
  for (const auto& [op, us] : given.at("host_us").value().items()) {
    stack.host_ns[op] = std::llround(us.get<double>() * kMicroseconds);
  }
  for (const auto& op : *given.value().find("waits")) stack.waits.insert(op.get<std::string>());
  for (const auto& [op, rows] : given.at("ops").value().items()) {
    for (const nlohmann::json& row : rows) {
      const Fields further(row, "stack.ops." + op);
      stack.ops[op].push_back({further.text("of"), further.text("with", ""),
                               further.number("kernels"), further.number("moves"),
                               further.text("products", "")});
    }
  }
  return std::make_shared<StackCost>(std::move(roofline), std::move(stack));
}

/// Returns the plan's gate for a sample of its routing. A gate in Lua gets a state of its own.
Gate sampled_gate(const Host& host, const PlanHandle& handle, const PlanSpec& spec) {
  return handle.gate ? rank_gates(host, handle.gate)(0) : builtin_gate(spec.gate.name);
}

/// Returns what the sample of a gate depends on, except for the scores.
std::string sample_key(const PlanHandle& handle, const PlanSpec& spec) {
  const Model& model = *spec.model;
  return fmt::format(
      "gate {} {} k={} capacity={},{} ranks={} tokens={} experts={} ep={} blocks={} vocab={} on ",
      spec.gate.name, handle.gate ? handle.gate->options.dump() : "", spec.gate.k,
      spec.gate.capacity, spec.gate.shared_capacity, spec.num_ranks, model.tokens_per_rank(),
      model.experts, model.ep, fmt::join(model.moe_blocks, ","), model.vocab);
}

/// Makes the gate choose by the scores of `law`. timed: whether the plan's ops have times, for
/// which the gate is sampled.
void route_by_scores(Host& host, std::shared_ptr<const RoutingModel> law, bool timed,
                     PlanSpec& spec, PlanHandle& handle) {
  spec.routing = host.kept<RoutingModel>(sample_key(handle, spec) + law->name, [&] {
    return gated_routing(
        gate_use(sampled_gate(host, handle, spec), spec.gate, *spec.model, spec.num_ranks), law);
  });
  if (!timed || spec.model->num_moe_layers() == 0) return;
  handle.routing.sample = mean_routing(*spec.routing, last_layer(spec));
}

/// Runs the gate on even scores and sets the share of slots in use. The built-in gates do not
/// distinguish layers. A gate that treats ranks' tokens differently has no mean that all could
/// take: in a simulation it runs for each rank instead, on scores that favour no expert; so does a
/// gate in Lua beside a dispatcher, whose rows follow from the choices of each token.
void sample_even(Host& host, const Fields& fields, PlanSpec& spec, PlanHandle& handle) {
  if (spec.model->num_moe_layers() == 0) return;
  const std::string key = sample_key(handle, spec) + "even scores";
  const MeanRouting even = *host.kept<MeanRouting>(key, [&] {
    return even_routing(
        gate_use(sampled_gate(host, handle, spec), spec.gate, *spec.model, spec.num_ranks),
        handle.gate ? spec.model->num_moe_layers() : 1);
  });
  if (even.sources == 0) return;
  const bool each = even.by_source || (handle.gate && fields.has("dispatcher"));
  const bool simulated = fields.at("cost").text("kind") == "roofline";
  if (each && simulated && spec.routing == nullptr) {
    auto law = std::make_shared<const RoutingModel>(workload("zipf", {{"s", 0}}, 1));
    return route_by_scores(host, std::move(law), true, spec, handle);
  }
  spec.work.slot_occupancy = std::max(
      1e-6, handle.gate ? even.slot_occupancy : spec.work.slot_occupancy * even.of_balanced);
  if (spec.routing == nullptr) handle.routing.sample = even;
}

/// Sets the plan's gate: one that gives the choices of `routing`; without a routing model, or with
/// one whose scores the gate reads, the gate in Lua in the field `gate` of the table at `index`, or
/// without that the built-in gate that the model names.
void set_gate(lua_State* L, int index, const Fields& fields, const ModelSpec& model,
              const std::shared_ptr<const RoutingModel>& routing, PlanSpec& spec,
              PlanHandle& handle) {
  if (routing && !fields.at("routing").flag("scores", false)) {
    spec.routing = routing;
    spec.gate = gate_spec(model, routed_gate(routing, model, {}, spec.num_ranks));
    handle.routing.choices = routing->name;
    return;
  }
  if (fields.has("gate")) {
    lua_getfield(L, index, "gate");
    handle.gate = gate_policy_of(L, lua_gettop(L), fields.at("gate"), model, spec);
    lua_pop(L, 1);
    spec.gate = handle.gate->spec;
  } else {
    spec.gate = gate_spec(model);
  }
  handle.routing.gate = handle.gate ? handle.gate->name : spec.gate.name;
  handle.routing.scores = routing ? routing->name : "even";
}

/// Checks the plan's routing model, or runs the plan's gate on the scores of `routing` (even ones
/// if it is null) to find what it routes.
void sample_gate(Host& host, const Fields& fields, std::shared_ptr<const RoutingModel> routing,
                 PlanSpec& spec, PlanHandle& handle) {
  if (spec.routing) {
    handle.routing.sample = checked_routing(spec);
    return;
  }
  const bool timed = fields.at("cost").text("kind") != "none";
  if (routing) route_by_scores(host, std::move(routing), timed, spec, handle);
  if (timed && fields.flag("sample", false)) sample_even(host, fields, spec, handle);
}

/// Returns ModelSpec::rows_bound of a simulated plan whose model gives none: the rows of the
/// busiest device under the routing, at least those of even choices, times kRowsMargin. They are
/// those of the steps that the plan's specification has simulated, else of the first.
double rows_bound_of(Host& host, const Fields& fields, const PlanSpec& spec,
                     const PlanHandle& handle) {
  const bool dropless = spec.model->capacity_factor <= 0 && spec.model->num_moe_layers() > 0;
  if (!dropless || spec.routing == nullptr) return kRowsMargin;
  int64_t first = 0, steps = 1;
  if (fields.has("simulate")) {
    first = fields.at("simulate").integer("first_step", 0);
    steps = fields.at("simulate").integer("steps", 1);
  }
  const std::string key = fmt::format("{}{} rows in {} steps from {}", sample_key(handle, spec),
                                      spec.routing->name, steps, first);
  return kRowsMargin * *host.kept<double>(key, [&] {
    double most = 1;
    RoutingQuery query = last_layer(spec);
    for (query.step = first; query.step < first + steps; ++query.step) {
      for (query.layer = 0; query.layer < spec.model->num_moe_layers(); ++query.layer) {
        most = std::max(most, most_rows(spec.routing->loads(query), spec));
      }
    }
    return most;
  });
}

}  // namespace

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

ModelSpec model_of(const Fields& model) {
  ModelSpec m;
  read_fields(model, m);
  m.dtype = dtype_of(model.text("dtype", "f32"));
  return m;
}

Cluster cluster_of(const Fields& cluster) {
  Cluster c;
  read_fields(cluster, c);
  return c;
}

PipelineSpec pipeline_of(const Fields& fields, const Model& model) {
  PipelineSpec spec;
  spec.shape = {fields.integer("ranks"), fields.integer("stages"), fields.integer("micro_batches"),
                value_named<pipeline::Placing>("placement", fields.text("placement"))};
  const pipeline::Shape& shape = spec.shape;
  const pipeline::Table table = pipeline::parse_table(fields.value().at("rows"));
  const bool two_way = shape.placing == pipeline::Placing::kTwoWay;
  for (const pipeline::Row& row : table.rows) {
    pipeline::Turns& turns = spec.turns.emplace_back();
    for (const pipeline::Action& a : row) {
      if (is_transfer(a.work)) continue;
      const int64_t chunk =
          two_way ? (a.micro >= shape.micro_batches / 2 ? 1 : 0) : a.stage / shape.ranks;
      turns.push_back({a.work, a.micro, static_cast<int32_t>(chunk), a.beside});
    }
  }
  if (model.forward.ops().empty()) return spec;  // of a program that rank 0 has planned
  const int64_t mtp_layers = num_mtp_layers(model), blocks = num_blocks(model) - mtp_layers;
  if (fields.has("layers")) {
    const int64_t given = fields.integer("mtp_layers");
    if (given != mtp_layers) {
      throw user_error("grid.layout: it has {} MTP layers (m), but the model has mtp_layers = {}",
                       given, mtp_layers);
    }
    spec.layers = fields.value().at("layers").get<std::vector<int64_t>>();
    int64_t sum = 0;
    for (const int64_t n : spec.layers) sum += n;
    if (sum -= given; sum != blocks) {
      throw user_error("grid.layout: it has {} decoder blocks, but the model has {}", sum, blocks);
    }
  } else if (blocks % shape.stages != 0) {
    throw user_error(
        "grid.pp: {} blocks cannot be spread evenly over {} stages of {} pipeline ranks; give a "
        "layout, such as \"Et*{}|...|L\", or another pp",
        blocks, shape.stages, shape.ranks, blocks / shape.stages + 1);
  } else {
    spec.layers.assign(static_cast<size_t>(shape.stages), blocks / shape.stages);
    spec.layers.back() += mtp_layers;
  }
  return spec;
}

PlanSpec plan_spec_of(lua_State* L, int index, PlanHandle& handle,
                      const std::optional<std::string_view>& program) {
  const nlohmann::json values = to_json(L, index, true);
  const Fields fields(values, "plan");
  PlanSpec spec;
  const ModelSpec model = model_of(fields.at("model"));
  const int64_t pipeline_ranks =
      fields.has("pipeline") ? fields.at("pipeline").integer("ranks") : 1;
  spec.num_ranks = fields.integer("ranks") / pipeline_ranks;
  spec.cluster = cluster_of(fields.at("cluster"));
  spec.work.slot_occupancy = fields.number("fill", 1);
  spec.element_bytes = fields.integer("element_bytes", 0);
  spec.inference = fields.flag("inference", false);
  if (fields.has("optimizer")) spec.optimizer = optimizer_of(fields.at("optimizer"));
  std::shared_ptr<const RoutingModel> routing = routing_in(L, index);
  if (routing && model.ep > 0) {
    routing = std::make_shared<const RoutingModel>(in_groups(*routing, model.ep));
  }
  set_gate(L, index, fields, model, routing, spec, handle);
  const std::shared_ptr<Model> built =
      program ? model_of_program(model, *program)
              : build_model(L, index, fields.at("model").value(), model, spec.gate, spec.num_ranks);
  spec.model = built;
  if (fields.has("pipeline")) spec.pipeline = pipeline_of(fields.at("pipeline"), *built);
  sample_gate(Host::of(L), fields, routing, spec, handle);
  if (!fields.at("model").has("rows_bound") && fields.at("cost").text("kind") == "roofline") {
    built->rows_bound = rows_bound_of(Host::of(L), fields, spec, handle);
  }
  lua_getfield(L, index, "system");
  const auto picks = std::make_shared<PickPolicies>();
  nlohmann::json seen = fields.at("model").value();
  seen.update(values_json<ModelSpec>(*built));
  picks->view =
      std::make_shared<const PolicyView>(PolicyView{std::move(seen), spec.work.slot_occupancy});
  handle.picks = picks;
  spec.system = system_of(L, lua_gettop(L), fields.at("system"), {spec, handle, picks});
  lua_pop(L, 1);
  const Fields cost = fields.at("cost");
  if (fields.has("edits")) {
    const Fields edits = fields.at("edits");
    spec.lowering = {.fuse_gelu = edits.flag("fuse_gelu", false),
                     .round_once = edits.flag("round_once", false),
                     .pad_logits = edits.flag("pad_logits", false)};
  }
  spec.lowering.own_attention = fields.flag("own_attention", false);
  // Only rank 0 makes plans, so ops are only measured there; other ranks take any cost model.
  if (cost.text("kind") == "profile" && is_root(Host::of(L))) {
    Prediction prediction = profile_of(Host::of(L), cost, spec, handle);
    handle.profile = std::move(prediction.cost);
    handle.rehearsal = std::move(prediction.rehearsal);
    // A recipe that gives the fill, so that no gate is sampled, keeps it.
    handle.routes_as_rehearsed = !spec.routing && fields.flag("sample", false) &&
                                 handle.rehearsal && handle.rehearsal->routing();
    if (handle.routes_as_rehearsed) {
      handle.routing = rehearsed_routing(*handle.rehearsal, spec, std::move(handle.routing));
    }
    spec.cost = handle.profile;
  } else if (cost.text("kind") == "none") {
    spec.cost = std::make_shared<NoTimes>(spec.rank_cluster());
  } else {
    RooflineCost roofline(spec.rank_cluster(), spec.work, tables_of(fields.at("cluster")),
                          offload_times_of(cost), fields.at("model").text("dtype", ""),
                          narrow_of(fields.at("model"), cost));
    spec.cost = under_stack(std::move(roofline), fields.at("cluster"));
  }
  if (fields.has("dispatcher")) {
    spec.dispatcher = dispatcher_of(fields.at("dispatcher"), spec);
    spec.cost = std::make_shared<DispatchCost>(spec.cost, spec.dispatcher, spec.work);
  }
  return spec;
}

}  // namespace moe::lua
