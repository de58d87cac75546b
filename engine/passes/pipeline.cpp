#include "engine/passes/pipeline.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <typeinfo>
#include <unordered_map>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/graph/op_def.h"
#include "engine/graph/verify.h"
#include "engine/passes/pass.h"
#include "engine/passes/stage_order.h"

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

/// Counts the changes of a stage that edits a graph.
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

/// Counts the changes of a scheduler, and adds to `after.settings` what the stage set, with the
/// name of the stage.
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

/// Makes the report of a stage. said: the entries of the log that the stage wrote. graph: the graph
/// as the stage left it. The caller sets took_ns.
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

void check_lanes(const Graph& graph, const Schedule& schedule) {
  if (schedule.lane_of.size() != graph.num_ops()) {
    throw run_error("the schedule has a lane for {} ops, but must have one for each of the {} ops",
                    schedule.lane_of.size(), graph.num_ops());
  }
  for (size_t i = 0; i < schedule.lane_of.size(); ++i) {
    const LaneId lane = schedule.lane_of[i];
    if (lane.valid() && lane.index() < schedule.lanes.size()) continue;
    throw run_error(
        "the schedule has op '{}' on lane number {}, but must use one of its {} lanes (from 0)",
        graph.ops()[i].name, lane.value, schedule.lanes.size());
  }
}

/// Runs `call` and adds to its errors the name of the stage and of the earlier stages that changed
/// something. An error of a derived class (from a policy) names its origin already and stays as it
/// is.
template <class Call>
auto in_stage(const std::string& stage, const std::vector<StageReport>& before, const Call& call) {
  const auto text = [&](const std::exception& error) {
    std::string message = error.what();
    if (message.find(stage) == std::string::npos) {
      message = fmt::format("stage '{}': {}", stage, message);
    }
    std::vector<std::string> names;
    for (const StageReport& report : before) {
      if (report.changed) names.push_back(fmt::format("'{}'", report.name));
    }
    if (!names.empty()) message += fmt::format(" (after stage {})", fmt::join(names, ", "));
    return message;
  };
  try {
    return call();
  } catch (const UserError& error) {
    if (typeid(error) != typeid(UserError)) throw;
    throw UserError(text(error));
  } catch (const RunError& error) {
    if (typeid(error) != typeid(RunError)) throw;
    throw RunError(text(error));
  }
}

Nanoseconds since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

/// Whether no system lists the stage.
bool runs_by_itself(const Stage& stage) {
  return stage.is_built_in() && builtin_pass(stage.name).runs != nullptr;
}

/// Refuses stages of which one forbids what the other does.
void refuse_opposites(const std::vector<Stage>& stages) {
  for (const Stage& stage : stages) {
    if (!stage.is_built_in()) continue;
    for (const std::string& name : builtin_pass(stage.name).against) {
      const auto same = [&](const Stage& other) { return other.name == name; };
      if (std::none_of(stages.begin(), stages.end(), same)) continue;
      throw user_error("stage '{}': '{}' forbids the overlap that it makes; leave one of them out",
                       stage.name, name);
    }
  }
}

/// Refuses stages that know one exchange per layer and direction where etp makes two.
void refuse_split_experts(const std::vector<Stage>& stages, const Model& model) {
  if (model.etp == 1) return;
  for (const Stage& stage : stages) {
    const bool built_in = stage.is_built_in();
    if (built_in ? !builtin_pass(stage.name).one_exchange : kind_of(stage) != StageKind::kPlacement)
      continue;
    throw user_error(
        "stage '{}': with etp = {} rows go to their experts by two exchanges per layer, which it "
        "does not know; use etp = 1, or leave the stage out",
        stage.name, model.etp);
  }
}

/// Returns the stages with the passes that no system lists, in order.
std::vector<Stage> all_stages(std::vector<Stage> stages, const StepSpec& step, const Model& model) {
  refuse_split_experts(stages, model);
  for (const Stage& stage : stages) {
    if (step.inference && kind_of(stage) == StageKind::kStep) {
      throw user_error(
          "stage '{}': it edits a training step, but inference has a forward pass only",
          stage.name);
    }
    if (!step.inference && stage.is_built_in() && builtin_pass(stage.name).inference_only) {
      throw user_error(
          "stage '{}': it is for inference only (moe.infer), not for training, because offloaded "
          "experts have no backward pass",
          stage.name);
    }
  }
  refuse_opposites(stages);
  for (const PassDef& pass : builtin_passes()) {
    if (pass.runs != nullptr && pass.runs(step)) stages.push_back({.name = pass.name});
  }
  return in_order(stages);
}

}  // namespace

StageKind kind_of(const Stage& stage) {
  return stage.is_built_in() ? builtin_pass(stage.name).kind : stage.kind;
}

Pipeline::Pipeline(const Model& model, const Cluster& cluster, const CostModel& cost,
                   const StepSpec& step, std::vector<Stage> stages)
    : model_(model),
      cluster_(cluster),
      cost_(cost),
      step_(step),
      stages_(all_stages(std::move(stages), step, model)) {}

PassContext Pipeline::context(const Stage& stage, const PassDef* pass,
                              std::vector<Decision>& log) const {
  Options options =
      pass != nullptr ? resolve_options(pass->name, pass->options, stage.options) : stage.options;
  return {model_, cluster_, cost_, step_, std::move(options), stage.name, &log};
}

Graph Pipeline::apply(const Stage& stage, Graph graph) {
  check_stop();
  const PassDef* pass = stage.transform ? nullptr : &builtin_pass(stage.name);
  const PassContext with = context(stage, pass, log_);
  graph = pass != nullptr ? pass->transform(std::move(graph), with)
                          : stage.transform(std::move(graph), with);
  graph = compact(graph);
  verify(graph, stage.name);
  return graph;
}

Schedule Pipeline::apply(const Stage& stage, const Graph& graph, Schedule schedule,
                         const StepTurns* turns) {
  check_stop();
  const PassDef* pass = stage.schedule ? nullptr : &builtin_pass(stage.name);
  std::vector<Decision> log;
  PassContext with = context(stage, pass, log);
  with.turns = turns;
  schedule = pass != nullptr ? pass->schedule(graph, std::move(schedule), with)
                             : stage.schedule(graph, std::move(schedule), with);
  schedule.log.insert(schedule.log.end(), log.begin(), log.end());
  check_lanes(graph, schedule);
  return schedule;
}

Graph Pipeline::transform(Graph graph) {
  for (const Stage& stage : stages_) {
    if (schedules(kind_of(stage))) continue;
    const auto begin = std::chrono::steady_clock::now();
    const size_t logged = log_.size();
    Graph after = in_stage(stage.name, reports_, [&] { return apply(stage, graph); });
    const StageChanges changes = changes_of(graph, after);
    StageReport report = report_of(stage, changes, std::span(log_).subspan(logged), after);
    report.took_ns = since(begin);
    if (!runs_by_itself(stage)) {
      reports_.push_back(std::move(report));
    } else if (report.changed) {
      unlisted_.push_back(std::move(report));
    }
    for (const Op& op : after.ops()) {
      // emplace() keeps the first stage after which the part exists.
      if (op.part >= 0) cut_by_.emplace(op.name, stage.name);
    }
    graph = std::move(after);
  }
  return graph;
}

std::vector<StageReport> Pipeline::reports() const {
  std::vector<StageReport> all = reports_;
  all.insert(all.end(), unlisted_.begin(), unlisted_.end());
  return all;
}

Schedule Pipeline::schedule(const Graph& graph, Schedule schedule) {
  const std::vector<OpId> producers = graph.producers();
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    if (op.part < 0) continue;
    const OpId forward = op.of.valid() ? producers[op.of.index()] : OpId();
    const auto cut = cut_by_.find(forward.valid() ? graph.op(forward).name : op.name);
    if (cut == cut_by_.end()) continue;
    schedule.settings.push_back({id, Setting::kPart, cut->second});
  }
  return run_schedulers(StageKind::kSchedule, graph, std::move(schedule), nullptr);
}

Schedule Pipeline::schedule_step(const Graph& graph, Schedule schedule, const StepTurns& turns) {
  return run_schedulers(StageKind::kPipeline, graph, std::move(schedule), &turns);
}

Schedule Pipeline::run_schedulers(StageKind kind, const Graph& graph, Schedule schedule,
                                  const StepTurns* turns) {
  for (const Stage& stage : stages_) {
    if (kind_of(stage) != kind) continue;
    const auto begin = std::chrono::steady_clock::now();
    const size_t logged = schedule.log.size();
    Schedule after =
        in_stage(stage.name, reports_, [&] { return apply(stage, graph, schedule, turns); });
    const StageChanges changes = changes_of(schedule, after, stage.name);
    reports_.push_back(report_of(stage, changes, std::span(after.log).subspan(logged), graph));
    reports_.back().took_ns = since(begin);
    schedule = std::move(after);
  }
  return schedule;
}

}  // namespace moe
