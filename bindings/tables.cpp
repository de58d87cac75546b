#include "bindings/tables.h"

#include <algorithm>
#include <cmath>

#include "bindings/host/field_json.h"
#include "engine/analysis/bubbles.h"
#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/dispatch/route.h"
#include "engine/model/blocks.h"
#include "engine/ops/ops.h"
#include "engine/passes/pass.h"
#include "engine/pipeline/turn.h"
#include "engine/placement/policy.h"
#include "engine/plan.h"
#include "engine/routing/gate.h"
#include "engine/routing/workload.h"
#include "engine/run.h"
#include "engine/timeline/metrics.h"

namespace moe::lua {
namespace {

using nlohmann::json;

json option_value(const OptionValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

json options_json(const std::vector<OptionSpec>& options) {
  json all = json::array();
  for (const OptionSpec& o : options) {
    json option = {{"name", o.name}, {"default", option_value(o.default_value)}, {"doc", o.doc}};
    if (o.lo < o.hi) {
      option["lo"] = o.lo;
      option["hi"] = o.hi;
    }
    if (!o.allowed.empty()) option["allowed"] = o.allowed;
    if (o.is_integer) option["whole"] = true;
    if (o.reads != Reads::kNothing) option["reads"] = name_of(o.reads);
    for (const std::string& name : o.replaces) {
      MOE_CHECK(std::any_of(options.begin(), options.end(),
                            [&name](const OptionSpec& other) { return other.name == name; }),
                "option '{}' replaces '{}', which does not exist", o.name, name);
      option["replaces"].push_back(name);
    }
    all.push_back(std::move(option));
  }
  return all;
}

json gates() {
  static constexpr const char* kScores[] = {"softmax", "sigmoid"};
  static constexpr const char* kWeights[] = {"prob", "renorm", "one"};
  json all = json::array();
  for (const Gate& gate : builtin_gates()) {
    all.push_back({{"name", gate.name},
                   {"doc", gate.doc},
                   {"kind", "gate"},
                   {"scope", gate.scope == GateScope::kToken ? "token" : "batch"},
                   {"scores", kScores[static_cast<int>(gate.scores)]},
                   {"weight", kWeights[static_cast<int>(gate.weight)]},
                   {"k", gate.fixed_k},
                   {"takes_best", gate.takes_best},
                   {"by_rule", gate.chooser == Chooser::kRule}});
    if (std::isfinite(gate.full_at)) all.back()["full_at"] = gate.full_at;
  }
  return all;
}

json names_of(const Facts& facts) {
  json names = json::array();
  for (const Fact fact : facts) names.push_back(name_of(fact));
  return names;
}

json passes() {
  json all = json::array();
  for (const PassDef& pass : builtin_passes()) {
    if (pass.runs != nullptr) continue;  // no system lists it
    all.push_back({{"name", pass.name},
                   {"doc", pass.doc},
                   {"kind", name_of(pass.kind)},
                   {"reads", name_of(pass.reads)},
                   {"needs", names_of(pass.needs)},
                   {"gives", names_of(pass.gives)},
                   {"inference", pass.inference_only},
                   {"states_note", pass.states_note},
                   {"options", options_json(pass.options)}});
  }
  return all;
}

/// Returns the passes that place experts, with the options of their policies.
json placements() {
  json all = json::array();
  for (json& pass : passes()) {
    if (pass["kind"] == name_of(StageKind::kPlacement)) all.push_back(std::move(pass));
  }
  return all;
}

/// Returns, for each dtype in which a model may train, the bytes of a parameter, which are also
/// those of its gradient, and of its states by optimizer: operands of the update that are neither,
/// without a master copy.
json number_rows() {
  json all = json::array();
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const Bytes wide = dtype_bytes(wide_dtype(dtype));
    json states;
    for (const char* optimizer : {"sgd", "adamw"}) {
      const auto& operands = op_table().def(op_table().kind(optimizer)).inputs;
      const auto values = std::count_if(operands.begin(), operands.end(),
                                        [](const Operand& o) { return o.role == Role::kValues; });
      states[optimizer] = wide * static_cast<Bytes>(values - 1);
    }
    all.push_back({{"name", name_of(dtype)}, {"bytes", wide}, {"states", std::move(states)}});
  }
  return all;
}

json pipelines() {
  json all = json::array();
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    all.push_back({{"name", def.name},
                   {"doc", def.doc},
                   {"kind", "pipeline"},
                   {"chunks", def.chunks},
                   {"fixed_chunks", def.fixed_chunks},
                   {"grouped", def.grouped},
                   {"placement", name_of(def.placing)}});
  }
  return all;
}

json workload_rows() {
  json all = json::array();
  for (const WorkloadDef& def : workloads()) {
    all.push_back({{"name", def.name},
                   {"doc", def.doc},
                   {"kind", "workload"},
                   {"has_popularity", def.has_popularity},
                   {"options", options_json(def.options)}});
  }
  return all;
}

json ops() {
  json all = json::array();
  for (const OpDef* def : op_table().defs()) {
    json operands = json::array();
    for (const auto* list : {&def->inputs, &def->outputs}) {
      for (const Operand& operand : *list) operands.push_back(operand.name);
    }
    const bool slots = place_of(def->inputs, Role::kSlots) || place_of(def->outputs, Role::kSlots);
    all.push_back({{"name", def->name},
                   {"doc", def->doc},
                   {"kind", name_of(def->lane)},
                   {"operands", operands},
                   {"slots", slots},
                   {"executes", def->run.f32 != nullptr || def->collective != Collective::kNone}});
  }
  return all;
}

json executor_rows() {
  json all = json::array();
  for (const ExecutorDef& def : executors()) {
    json precisions = json::array();
    for (const Precision p : def.precisions) precisions.push_back(name_of(p));
    all.push_back({{"name", def.name},
                   {"doc", def.doc},
                   {"kind", "executor"},
                   {"precisions", precisions},
                   {"gpu", def.gpu}});
  }
  return all;
}

/// Returns the table of the options of a model's block.
template <class Block>
json block_fields() {
  return {{"name", Block::kName}, {"doc", Block::kDoc}, {"fields", fields_json<Block>()}};
}

/// Returns the tables of the fields that recipes write or results have, each with the name of the
/// struct that it describes.
json field_tables() {
  return json::array({
      {{"name", "cluster"}, {"doc", "fields of moe.cluster"}, {"fields", fields_json<Cluster>()}},
      {{"name", "model"}, {"doc", "fields of every model"}, {"fields", fields_json<ModelSpec>()}},
      {{"name", "all_reduce"},
       {"doc", "all-reduce of gradients"},
       {"fields", fields_json<GradientSync>()}},
      {{"name", "run"},
       {"doc", "options of a run of a plan on real ranks"},
       {"fields", fields_json<RunOptions>()}},
      {{"name", "result"}, {"doc", "result of a run"}, {"fields", fields_json<RunResult>()}},
      {{"name", "moe_stats"},
       {"doc", "statistics of an MoE layer in a step"},
       {"fields", fields_json<MoeStats>()}},
      {{"name", "placement_rates"},
       {"doc", "rates from which the times of placements are computed"},
       {"fields", fields_json<PlacementRates>()}},
      {{"name", "rank"},
       {"doc", "statistics of a rank in a step"},
       {"fields", fields_json<RankStats>()}},
      {{"name", "law"},
       {"doc", "parameters of the time of a dispatch or combine"},
       {"fields", fields_json<dispatch::Law>()}},
      {{"name", "route"},
       {"doc", "what a dispatcher moves"},
       {"fields", fields_json<dispatch::Route>()}},
      {{"name", "bubbles"},
       {"doc", "what a pipeline rank does in a step"},
       {"fields", fields_json<Bubbles>()}},
      {{"name", "machine_state"},
       {"doc", "state of the machine at a step"},
       {"fields", fields_json<MachineState>()}},
      {{"name", "sgd"}, {"doc", "the optimizer SGD"}, {"fields", fields_json<Sgd>()}},
      {{"name", "adamw"}, {"doc", "the optimizer AdamW"}, {"fields", fields_json<Adamw>()}},
      block_fields<blocks::Embedding>(),
      block_fields<blocks::Rope>(),
      block_fields<blocks::GroupedAttention>(),
      block_fields<blocks::LatentAttention>(),
      block_fields<blocks::FeedForward>(),
      block_fields<blocks::Experts>(),
      block_fields<blocks::Head>(),
  });
}

json metrics() {
  json all = fields_json<Metrics>();
  for (json& row : all) row["kind"] = "metric";
  return all;
}

}  // namespace

json table_json(const std::string& kind) {
  if (kind == "gates") return gates();
  if (kind == "passes") return passes();
  if (kind == "placements") return placements();
  if (kind == "ops") return ops();
  if (kind == "executors") return executor_rows();
  if (kind == "metrics") return metrics();
  if (kind == "fields") return field_tables();
  if (kind == "workloads") return workload_rows();
  if (kind == "numbers") return number_rows();
  if (kind == "pipelines") return pipelines();
  throw UserError(unknown_name("table", kind,
                               {"gates", "passes", "placements", "ops", "executors", "fields",
                                "metrics", "workloads", "numbers", "pipelines"}));
}

}  // namespace moe::lua
