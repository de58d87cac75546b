#include "bindings/tables.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/ops/ops.h"
#include "engine/passes/pass.h"
#include "engine/routing/gate.h"
#include "engine/routing/workload.h"

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
                   {"kind", def->lane == LaneKind::kCompute ? "compute" : "comm"},
                   {"executes", def->run_f32 != nullptr || def->collective != Collective::kNone}});
  }
  return all;
}

json executors() {
  return json::array(
      {{{"name", "simulate"}, {"kind", "executor"}, {"doc", "the cost model's timeline"}},
       {{"name", "cpu"},
        {"kind", "executor"},
        {"doc", "real training on ranks that are threads of this process"}},
       {{"name", "cuda"},
        {"kind", "executor"},
        {"doc", "real training on ranks whose memory is on one GPU"}}});
}

}  // namespace

json table_json(const std::string& kind) {
  if (kind == "gates") return gates();
  if (kind == "passes") return passes();
  if (kind == "placements") return placements();
  if (kind == "ops") return ops();
  if (kind == "executors") return executors();
  if (kind == "workloads") return workload_rows();
  throw UserError(unknown_name("table", kind,
                               {"gates", "passes", "placements", "ops", "executors", "workloads"}));
}

}  // namespace moe::lua
