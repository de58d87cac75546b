#include "engine/passes/stage_report.h"

#include <algorithm>
#include <unordered_map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/passes/pipeline.h"

namespace moe {
namespace {

/// Returns whether two ops are the same with the same operands; ids may differ.
bool same_op(const Graph& a, const Op& x, const Graph& b, const Op& y) {
  const auto same_tensor = [&](TensorId s, TensorId t) {
    return s.valid() == t.valid() && (!s.valid() || a.tensor(s).name == b.tensor(t).name);
  };
  return x.kind == y.kind && x.attrs == y.attrs && x.rows == y.rows &&
         x.inputs.size() == y.inputs.size() && x.outputs.size() == y.outputs.size() &&
         std::equal(x.inputs.begin(), x.inputs.end(), y.inputs.begin(), same_tensor) &&
         std::equal(x.outputs.begin(), x.outputs.end(), y.outputs.begin(), same_tensor);
}

/// Returns whether two programs are the same, op by op.
bool same(const Graph& a, const Graph& b) {
  if (a.num_ops() != b.num_ops() || a.tensors().size() != b.tensors().size()) return false;
  for (size_t i = 0; i < a.num_ops(); ++i) {
    const Op &x = a.ops()[i], &y = b.ops()[i];
    if (x.name != y.name || !same_op(a, x, b, y)) return false;
  }
  return true;
}

bool has_all_to_all(const Graph& graph) {
  return std::any_of(graph.ops().begin(), graph.ops().end(), [&graph](const Op& op) {
    return graph.def(op).collective == Collective::kAllToAll;
  });
}

/// Returns the option of a built-in pass that requests no change ("degree = 1"), or "".
std::string no_op_option_of(const Stage& stage) {
  const PassDef& pass = builtin_pass(stage.name);
  const Options options = resolve_options(pass.name, pass.options, stage.options);
  for (const OptionSpec& spec : pass.options) {
    const double* value = std::get_if<double>(&options.at(spec.name));
    if (value != nullptr && spec.off == *value) return fmt::format("{} = {}", spec.name, *value);
  }
  return "";
}

/// Returns the reason for a stage that changed nothing and gave no reason itself.
std::string reason_of(const Stage& stage, const Graph& graph) {
  if (!stage.is_built_in()) {
    return fmt::format(
        "the stage's function changed nothing in the {} (call ctx:skip(why) to give a reason)",
        schedules(stage.kind) ? "schedule" : "graph");
  }
  if (!has_all_to_all(graph)) {
    return "no rows are exchanged: the graph has no all-to-all";
  }
  if (schedules(kind_of(stage))) {
    return "the pass adds no order that does not exist already";
  }
  return "the graph has no op that the pass would change";
}

}  // namespace

StageChanges changes_of(const Graph& before, const Graph& after) {
  if (same(before, after)) return {};
  std::unordered_map<std::string_view, const Op*> known;
  for (const Op& op : before.ops()) known.emplace(op.name, &op);
  StageChanges changes;
  for (const Op& op : after.ops()) {
    const auto found = known.find(op.name);
    if (found == known.end() || !same_op(before, *found->second, after, op)) ++changes.ops;
    if (found != known.end()) known.erase(found);
  }
  changes.ops += static_cast<int64_t>(known.size());
  // If only the order of the ops differs, one changed op is reported.
  changes.ops = std::max<int64_t>(changes.ops, 1);
  return changes;
}

StageChanges changes_of(const Schedule& before, Schedule& after, const std::string& stage) {
  StageChanges changes;
  const auto chunk = [](const Schedule& s, size_t op) {
    return s.chunk_bytes.empty() ? 0 : s.chunk_bytes[op];
  };
  for (size_t i = 0; i < after.lane_of.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const auto note = [&](Setting::What what, int64_t was, int64_t is, int64_t& count) {
      if (was == is) return;
      after.settings.push_back({op, what, stage, was});
      ++count;
    };
    note(Setting::kLane, before.lane_of[i].value, after.lane_of[i].value, changes.lanes);
    note(Setting::kPriority, before.priority_of(op), after.priority_of(op), changes.priorities);
    note(Setting::kChunk, chunk(before, i), chunk(after, i), changes.chunks);
  }
  const auto more = [](const auto& was, const auto& is) {
    return static_cast<int64_t>(is.size()) - static_cast<int64_t>(was.size());
  };
  changes.order_edges = more(before.order_edges, after.order_edges);
  changes.holds = more(before.holds, after.holds);
  changes.disciplines = more(before.exclusive, after.exclusive);
  for (size_t l = 0; l < before.lanes.size(); ++l) {
    if (before.lanes[l].pick != after.lanes[l].pick) ++changes.disciplines;
  }
  return changes;
}

StageReport report_of(const Stage& stage, const StageChanges& changes,
                      std::span<const Decision> said, const Graph& graph) {
  StageReport report{.name = stage.name, .changed = changes != StageChanges()};
  report.changes = changes;
  for (const Decision& d : said) {
    if (!d.skipped) continue;
    report.without_effect.push_back(d.op == stage.name ? d.why
                                                       : fmt::format("'{}': {}", d.op, d.why));
  }
  if (report.changed || !report.without_effect.empty()) return report;
  if (stage.is_built_in()) report.no_op_option = no_op_option_of(stage);
  if (!report.no_op_option.empty()) return report;
  report.without_effect.push_back(said.empty() ? reason_of(stage, graph) : said.back().why);
  return report;
}

}  // namespace moe
