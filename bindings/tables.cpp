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

template <class S>
json fields_of(const char* name, const char* doc) {
  return {{"name", name}, {"doc", doc}, {"fields", fields_json<S>()}};
}

/// Returns the tables of the options of the blocks of models.
template <class... Blocks>
json blocks_of() {
  return json::array({fields_of<Blocks>(Blocks::kName, Blocks::kDoc)...});
}

/// Returns the tables of the fields that recipes write or results have, each with the name of the
/// struct that it describes.
json field_tables() {
  json all = {
      fields_of<Cluster>("cluster", "fields of moe.cluster"),
      fields_of<ModelSpec>("model", "fields of every model"),
      fields_of<GradientSync>("all_reduce", "all-reduce of gradients"),
      fields_of<RunOptions>("run", "options of a run of a plan on real ranks"),
      fields_of<RunResult>("result", "result of a run"),
      fields_of<MoeStats>("moe_stats", "statistics of an MoE layer in a step"),
      fields_of<PlacementRates>("placement_rates",
                                "rates from which the times of placements are computed"),
      fields_of<RankStats>("rank", "statistics of a rank in a step"),
      fields_of<dispatch::Law>("law", "parameters of the time of a dispatch or combine"),
      fields_of<dispatch::Route>("route", "what a dispatcher moves"),
      fields_of<Bubbles>("bubbles", "what a pipeline rank does in a step"),
      fields_of<MachineState>("machine_state", "state of the machine at a step"),
      fields_of<Sgd>("sgd", "the optimizer SGD"),
      fields_of<Adamw>("adamw", "the optimizer AdamW"),
  };
  for (json& block :
       blocks_of<blocks::Embedding, blocks::Rope, blocks::GroupedAttention, blocks::LatentAttention,
                 blocks::FeedForward, blocks::Experts, blocks::Head>()) {
    all.push_back(std::move(block));
  }
  return all;
}

json metrics() {
  json all = fields_json<Metrics>();
  for (json& row : all) row["kind"] = "metric";
  return all;
}

}  // namespace

json table_json(const std::string& kind) {
  static const std::map<std::string, json (*)()> kTables = {{"gates", gates},
                                                            {"passes", passes},
                                                            {"placements", placements},
                                                            {"ops", ops},
                                                            {"executors", executor_rows},
                                                            {"metrics", metrics},
                                                            {"fields", field_tables},
                                                            {"workloads", workload_rows},
                                                            {"numbers", number_rows},
                                                            {"pipelines", pipelines}};
  const auto found = kTables.find(kind);
  if (found != kTables.end()) return found->second();
  std::vector<std::string> names;
  for (const auto& [name, make] : kTables) names.push_back(name);
  throw UserError(unknown_name("table", kind, names));
}

}  // namespace moe::lua
