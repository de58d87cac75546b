#include "bindings/tables.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/ops/ops.h"
#include "engine/passes/pass.h"
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
    json option = {{"name", o.name}, {"default", option_value(o.otherwise)}, {"doc", o.doc}};
    if (o.lo < o.hi) {
      option["lo"] = o.lo;
      option["hi"] = o.hi;
    }
    if (!o.allowed.empty()) option["allowed"] = o.allowed;
    if (o.whole) option["whole"] = true;
    if (o.reads != Reads::kNothing) option["reads"] = reads_name(o.reads);
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
                   {"k", gate.fixed_k}});
  }
  return all;
}

json passes() {
  json all = json::array();
  for (const PassDef& pass : builtin_passes()) {
    all.push_back({{"name", pass.name},
                   {"doc", pass.doc},
                   {"kind", stage_kind_name(pass.kind)},
                   {"reads", reads_name(pass.reads)},
                   {"options", options_json(pass.options)}});
  }
  return all;
}

/// The passes that place experts, with the options of their policies.
json placements() {
  json all = json::array();
  for (json& pass : passes()) {
    if (pass["kind"] == stage_kind_name(StageKind::kPlacement)) all.push_back(std::move(pass));
  }
  return all;
}

json workload_rows() {
  json all = json::array();
  for (const WorkloadDef& def : workloads()) {
    all.push_back({{"name", def.name},
                   {"doc", def.doc},
                   {"kind", "workload"},
                   {"options", options_json(def.options)}});
  }
  return all;
}

json ops() {
  json all = json::array();
  for (const OpDef* def : op_table().defs()) {
    all.push_back({{"name", def->name},
                   {"doc", def->doc},
                   {"kind", lane_kind_name(def->lane)},
                   {"executes", def->run_f32 != nullptr || def->collective != Collective::kNone}});
  }
  return all;
}

json executor_rows() {
  json all = json::array();
  for (const ExecutorDef& def : executors()) {
    json precisions = json::array();
    for (const Precision p : def.precisions) precisions.push_back(precision_name(p));
    all.push_back({{"name", def.name},
                   {"doc", def.doc},
                   {"kind", "executor"},
                   {"precisions", precisions},
                   {"gpu", def.gpu}});
  }
  return all;
}

/// What a real run has where its recipe does not say it.
json run_defaults() {
  const RunOptions usual;
  return {{{"name", "timeout_s"}, {"default", usual.timeout_s}},
          {{"name", "link_blocks"}, {"default", usual.device.link_blocks}}};
}

json metrics() {
  json all = json::array();
  for (const MetricField& field : metric_fields()) {
    all.push_back({{"name", field.name}, {"doc", field.doc}, {"kind", "metric"}});
  }
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
  if (kind == "run") return run_defaults();
  if (kind == "workloads") return workload_rows();
  throw UserError(unknown_name(
      "table", kind,
      {"gates", "passes", "placements", "ops", "executors", "metrics", "run", "workloads"}));
}

}  // namespace moe::lua
