// plan:run: runs a plan and returns its results.

#include "bindings/run.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "bindings/host/field_json.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/infer.h"
#include "bindings/policy/gate.h"
#include "bindings/policy/pick.h"
#include "engine/analysis/bubbles.h"
#include "engine/analysis/planner_error.h"
#include "engine/base/files.h"
#include "engine/base/utf8.h"
#include "engine/exec/data.h"
#include "engine/exec/machine_memory.h"
#include "engine/exec/safetensors.h"
#include "engine/run.h"

namespace moe::lua {
namespace {

using nlohmann::json;

constexpr const char* kTurnsType = "runs in turns";

/// Returns the rows of ids in a JSON text, a list of lists of whole numbers.
std::vector<std::vector<int32_t>> rows_of(const std::string& text, const std::string& path) {
  check_json_size(text, path);
  const json rows = json::parse(text, nullptr, false);
  const auto is_row = [](const json& row) {
    return row.is_array() && std::all_of(row.begin(), row.end(), [](const json& id) {
             return id.is_number_integer() && id.is_number_unsigned() && id < (1u << 31);
           });
  };
  if (!rows.is_array() || !std::all_of(rows.begin(), rows.end(), is_row)) {
    throw user_error("{}: it is not a list of rows of token ids, such as [[3, 14, 15], [9, 2, 6]]",
                     path);
  }
  return rows.get<std::vector<std::vector<int32_t>>>();
}

/// Returns where a tensor of block `block` is. given: { names, transposed, interleaved, plus,
/// others }, where "{i}" in a name is the block.
TensorSource source_of(const json& given, const std::string& block) {
  TensorSource source{.transposed = given.value("transposed", false),
                      .interleaved = given.value("interleaved", false),
                      .plus = given.value("plus", 0.0)};
  for (std::string text : given.at("names")) {
    if (const size_t at = text.find("{i}"); at != std::string::npos) text.replace(at, 3, block);
    source.names.push_back(std::move(text));
  }
  for (const json& other : given.value("others", json::array())) {
    source.others.push_back(source_of(other, block));
  }
  return source;
}

/// Returns where the tensors of the model are in a checkpoint. given: source_of()'s argument by the
/// name of a tensor without its prefix "b<i>.".
TensorSources sources_of(const Model& model, const json& given) {
  TensorSources sources;
  const auto add = [&](const std::string& name) {
    std::string key = name, block;
    if (name.size() > 1 && name[0] == 'b' && name[1] >= '0' && name[1] <= '9') {
      block = name.substr(1, name.find('.') - 1);
      key = name.substr(name.find('.') + 1);
    }
    if (given.contains(key)) sources[name] = source_of(given.at(key), block);
  };
  for (const ParamInfo& info : model.parameters) add(info.name);
  for (const ParamInfo& info : model.states) add(info.name);
  return sources;
}

/// Opens the checkpoint that the recipe names: a file, or the index of several files beside it.
std::shared_ptr<const LoadedParameters> loaded_of(const Host& host, const Fields& f,
                                                  const Model& model) {
  const std::string name = f.text("path");
  std::vector<std::string> paths = {host.files().readable(name).string()};
  if (name.ends_with(".json")) {
    const std::filesystem::path folder = std::filesystem::path(paths[0]).parent_path();
    std::vector<std::string> files = files_of_index(host.files().read(name), name);
    for (std::string& file : files) file = host.files().readable((folder / file).string()).string();
    paths = std::move(files);
  }
  auto loaded =
      std::make_shared<const LoadedParameters>(std::make_shared<const Safetensors>(paths), model,
                                               sources_of(model, f.at("sources").value()));
  if (!loaded->unused().empty() && is_root(host)) {
    std::fprintf(stderr, "moebench: %s: %zu of its tensors are not read, for example %s\n",
                 printable(name).c_str(), loaded->unused().size(),
                 printable(loaded->unused().front()).c_str());
  }
  return loaded;
}

std::shared_ptr<const TextCorpus> corpus_of(const Host& host, const Fields& data,
                                            const PlanSpec& spec) {
  std::string path = data.text("path");
  if (path != default_corpus_path(host.options().scripts_dir)) {
    path = host.files().readable(path).string();
  }
  return std::make_shared<const TextCorpus>(read_text(path, spec.model->seq));
}

RunData text_of(const Fields& data, const PlanSpec& spec,
                const std::shared_ptr<const TextCorpus>& corpus) {
  return run_data(*spec.model, spec.num_ranks, corpus,
                  static_cast<uint64_t>(data.integer("seed", 1)));
}

void set_data(const Host& host, const Fields& data, const PlanSpec& spec, RunOptions& options,
              json& out) {
  const std::string kind = data.text("kind");
  const std::string file = std::filesystem::path(data.text("path", "")).filename().string();
  options.train.tokens = printable(kind == "reference" ? kind : kind + " of " + file);
  if (kind == "reference") {
    const RunData tokens = run_data(*spec.model, spec.num_ranks);
    options.data = tokens.train;
    options.train.eval_data = tokens.held_out;
    return;
  }
  if (kind == "rows") {
    const std::string path = data.text("path");
    options.data =
        row_data(rows_of(host.files().read(path), path), path, *spec.model, spec.num_ranks);
    options.train.eval_data = options.data;
    return;
  }
  if (kind != "text") {
    throw user_error("data.kind: '{}' is not allowed; give text, rows or reference", kind);
  }
  const std::shared_ptr<const TextCorpus> corpus = corpus_of(host, data, spec);
  const RunData text = text_of(data, spec, corpus);
  options.data = data.flag("held_out", false) ? text.held_out : text.train;
  options.train.eval_data = text.held_out;
  out["unigram_entropy"] = corpus->unigram_entropy;
  out["corpus"] = corpus->source;
}

// Replaces the paths of checkpoints as the recipe gives them by the files' real paths.
void find_files(const Host& host, Checkpoints& files) {
  if (!files.resume_from.empty()) {
    files.resume_from = host.files().readable(files.resume_from).string();
  }
  if (!files.write_to.empty()) files.write_to = host.files().writable(files.write_to).string();
}

/// Adds `by` times the numbers of measure() (i % 13 - 6) to the initial values of a parameter.
void move_parameter(const Fields& moved, const Model& model, RunOptions& options) {
  const std::string name = moved.text("parameter");
  const double by = moved.number("by");
  size_t number = 0;
  while (number < model.parameters.size() && model.parameters[number].name != name) ++number;
  if (number == model.parameters.size()) throw user_error("the model has no parameter '{}'", name);
  const ParamInit before = options.values ? options.values : options.init;
  options.values = [=](uint64_t i, uint64_t t) {
    const double value = before(i, t);
    return t == number ? value + by * (static_cast<double>(i % 13) - 6) : value;
  };
}

/// Lets the run write its parameters: { path, sources, type }.
void write_parameters(const Host& host, const Fields& f, const ModelPtr& model,
                      TrainOptions& train) {
  const std::string path = host.files().writable(f.text("path")).string();
  const auto type = value_named<FileType>("type of parameters", f.text("type"));
  train.keep_parameters =
      [=, sources = sources_of(*model, f.at("sources").value())](const ParamInit& values) {
        write_safetensors(path, *model, sources, type, values);
      };
}

RunOptions options_of(Host& host, const Fields& f, const PlanHandle& handle,
                      const std::shared_ptr<PlacementLog>& log, json& out) {
  RunOptions options;
  read_fields(f, options);
  find_files(host, options.train.checkpoints);
  if (f.text("init", "reference") != "reference") {
    throw user_error("init: '{}' is not allowed; give reference", f.text("init"));
  }
  options.init = reference_values(*handle.plan->spec.model);
  if (f.has("parameters")) {
    const auto loaded = loaded_of(host, f.at("parameters"), *handle.plan->spec.model);
    options.values = [loaded](uint64_t i, uint64_t t) { return loaded->value(i, t); };
  }
  if (f.has("written")) {
    write_parameters(host, f.at("written"), handle.plan->spec.model, options.train);
  }
  if (f.has("moved")) move_parameter(f.at("moved"), *handle.plan->spec.model, options);
  if (f.has("data")) set_data(host, f.at("data"), handle.plan->spec, options, out);
  if (f.has("record")) {
    host.files().writable(f.text("record"));  // throws before the run if it cannot be written
    options.record = std::make_shared<Trace>();
  }
  if (handle.gate) options.policies.gate = rank_gates(host, handle.gate);
  options.policies.place = placements_of(host, handle, f.text("executor", "cpu"), log);
  if (handle.picks && !handle.picks->list.empty()) {
    options.policies.choose = executor_choose(host, *handle.plan, *handle.picks);
  }
  return options;
}

json executed_json(const RunResult& result, const Plan& plan) {
  json ranks = json::array();
  const bool of_each = std::ssize(result.executed) == plan.num_ranks();
  for (const auto& lanes : result.executed) {
    const Plan& program = of_each ? plan.program(std::ssize(ranks)) : plan;
    json by_lane = json::object();
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      json names = json::array();
      for (const OpId op : lanes[lane]) names.push_back(plan.graph.op(op).name);
      by_lane[program.schedule.lanes[lane].name] = std::move(names);
    }
    ranks.push_back(std::move(by_lane));
  }
  return ranks;
}

/// Returns, for each ModelOp ("a2a", "experts", ...), { error = mean relative error over `num`
/// samples (absent if num is 0), num, samples = lists { step, layer (both from 1), phase,
/// estimated_ms, real_ms } }.
json planner_error_json(const ModelErrors& errors) {
  json ops = json::object();
  for (int32_t i = 0; i < kNumModelOps; ++i) {
    const ModelError& error = errors[static_cast<size_t>(i)];
    json step = json::array(), layer = json::array(), phase = json::array();
    json estimated = json::array(), real = json::array();
    for (const ModelSample& sample : error.samples) {
      step.push_back(sample.step + 1);
      layer.push_back(sample.layer + 1);
      phase.push_back(name_of(sample.phase));
      estimated.push_back(sample.estimated_s * 1e3);
      real.push_back(sample.real_s * 1e3);
    }
    json op = {{"samples",
                {{"step", std::move(step)},
                 {"layer", std::move(layer)},
                 {"phase", std::move(phase)},
                 {"estimated_ms", std::move(estimated)},
                 {"real_ms", std::move(real)}}},
               {"num", error.count}};
    if (error.count > 0) op["error"] = error.mean;
    ops[name_of(static_cast<ModelOp>(i))] = std::move(op);
  }
  return ops;
}

// Adds the results of a run to `out`. ended: true if the run finished; if it failed, its digest and
// peak memory are not valid and are omitted.
void fill_result(const RunResult& r, const Plan& plan, bool ended, json& out) {
  out.update(values_json(r));
  out["executed"] = executed_json(r, plan);
  out["samples_ms"] = json::array();
  for (const Metrics& m : r.metrics) out["samples_ms"].push_back(to_ms(m.makespan_ns));
  if (!plan.programs.empty() && !r.timelines.empty()) {
    out["pipeline"] = pipeline_json(plan, r.timelines.back());
  }
  if (r.stop_reason.empty()) out.erase("stop_reason");
  if (!ended) {
    out.erase("digest");
    out.erase("peak_bytes");
  }
}

/// A run that a recipe requested, with what its result is made of.
struct PreparedRun {
  PlanHandle handle;
  json values;  // the request
  json out;     // the part of the result that is known before the run
  RunOptions options;
  std::shared_ptr<PlacementLog> log = std::make_shared<PlacementLog>();

  Fields fields() const { return {values, "run"}; }
  std::string executor() const { return fields().text("executor", "cpu"); }
};

/// Reads the request at `index` for a run of the plan at `plan`.
PreparedRun prepared(lua_State* L, int plan, int index) {
  Host& host = Host::of(L);
  luaL_checktype(L, index, LUA_TTABLE);
  PreparedRun run{.handle = check_plan(L, plan), .values = to_json(L, index, true)};
  run.out = json::object();
  run.options = options_of(host, run.fields(), run.handle, run.log, run.out);
  if (run.handle.plan->spec.inference) {
    set_inference(L, index, run.fields(), host, run.options.infer);
  }
  run.options.processes = job_of(host);
  show_steps(host, run.options);
  return run;
}

/// Pushes the result table of a run.
void push_result(lua_State* L, PreparedRun& run, PartialRun partial) {
  const Host& host = Host::of(L);
  const Plan& plan = *run.handle.plan;
  auto& [result, ended] = partial;
  const auto find = [&, &ended = ended, &result = result] {
    fill_result(result, plan, ended, run.out);
    const int64_t first_step = run.options.first_step;
    if (!result.placements.empty()) {
      run.out["placements"] = placements_json(result, first_step, *run.log);
      run.out["planner_error"] = planner_error_json(planner_errors(plan, result));
    }
    if (plan.spec.inference) {
      run.out["inference"] = inference_json(result, plan, run.options.data, first_step);
    }
    if (const auto& record = run.options.record; ended && record && record->steps > 0) {
      const std::filesystem::path path = host.files().writable(run.fields().text("record"));
      write_file(path, trace_bytes(*record));
      run.out["record"] = path.string();
    }
    if (run.options.train.eval_batches == 0 || result.stopped) run.out.erase("eval_loss");
    return run.out;
  };
  push_json(L, broadcast_from_root(host, "result", find));
  Timelines timelines{run.handle.plan, {}};
  for (Timeline& step : result.timelines) {
    timelines.steps.emplace(timelines.steps.size() + 1, std::move(step));
  }
  push_userdata<Timelines>(L, kTimelinesType, std::move(timelines));
  lua_setfield(L, -2, "timelines");
}

/// Runs that took turns, before their results are fetched.
struct FinishedTurns {
  std::vector<PreparedRun> runs;
  std::vector<TurnsResult> results;  // of `runs`
};

/// A rehearsal, and its run in turns with the runs that it predicts.
struct RehearsalBeside {
  std::shared_ptr<Rehearsal> rehearsal;
  RehearsalRun run;
};

/// The rehearsals of the runs, which systems of one schedule share, each once.
std::vector<RehearsalBeside> rehearsals_beside(const std::vector<PreparedRun>& runs) {
  int64_t steps = 0;
  for (const PreparedRun& run : runs) steps = std::max(steps, run.options.steps);
  std::vector<RehearsalBeside> beside;
  for (const PreparedRun& run : runs) {
    const std::shared_ptr<Rehearsal>& own = run.handle.rehearsal;
    const auto is_own = [&own](const RehearsalBeside& b) { return b.rehearsal == own; };
    if (own == nullptr || std::any_of(beside.begin(), beside.end(), is_own)) continue;
    beside.push_back({own, own->beside(std::min(steps, kMostStepsBeside))});
  }
  return beside;
}

}  // namespace

json pipeline_json(const Plan& plan, const Timeline& timeline) {
  json ranks = json::array();
  const std::vector<std::vector<TurnTime>> turns = turns_of(plan, timeline);
  for (const Bubbles& bubbles : bubbles_of(plan, timeline)) {
    json rank = values_json(bubbles);
    for (const TurnTime& t : turns[ranks.size()]) {
      rank["turns"].push_back(
          {{"text", t.text}, {"begin_ms", to_ms(t.begin)}, {"end_ms", to_ms(t.end)}});
    }
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

DataSource other_tokens(const Host& host, const Fields& data, const PlanSpec& spec) {
  if (data.text("kind") != "text") return nullptr;
  return text_of(data, spec, corpus_of(host, data, spec)).held_out;
}

RankPlacements placements_of(const Host& host, const PlanHandle& handle, std::string_view executor,
                             std::shared_ptr<PlacementLog> log) {
  if (!handle.placement) return nullptr;
  return rank_placements(host, handle.placement,
                         {handle.plan->memory.peak_bytes(), std::move(log),
                          executor == "simulate" ? handle.plan : nullptr});
}

void show_steps(Host& host, RunOptions& options) {
  if (!host.progress().shown()) return;
  options.on_step = [&progress = host.progress(), n = int64_t{0}, of = options.steps](
                        int64_t, double) mutable {
    progress.step(++n, of);
    return true;
  };
}

int run_plan(lua_State* L) {
  Host& host = Host::of(L);
  lua_settop(L, 2);
  host.end_loading();
  const Host::EngineCall in_engine(host);
  PreparedRun run = prepared(L, 1, 2);
  push_result(L, run, run_partially(*run.handle.plan, run.executor(), run.options));
  return 1;
}

int run_plans_in_turns(lua_State* L) {
  Host& host = Host::of(L);
  for (const int index : {1, 2}) luaL_checktype(L, index, LUA_TTABLE);
  const auto steps = static_cast<int64_t>(luaL_checknumber(L, 3));
  host.end_loading();
  const Host::EngineCall in_engine(host);
  std::vector<PreparedRun> runs;
  std::vector<RunInTurns> in_turns;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    lua_rawgeti(L, 2, static_cast<int>(i));
    runs.push_back(prepared(L, lua_gettop(L) - 1, lua_gettop(L)));
    in_turns.push_back(
        {runs.back().handle.plan.get(), runs.back().executor(), runs.back().options});
  }
  const std::vector<RehearsalBeside> beside = rehearsals_beside(runs);
  for (const RehearsalBeside& b : beside)
    in_turns.push_back({b.run.plan.get(), runs[0].executor(), b.run.options});
  std::vector<TurnsResult> results = run_in_turns(std::move(in_turns), steps);
  for (size_t i = 0; i < beside.size(); ++i) {
    const TurnsResult& turns = results[runs.size() + i];
    // If the rehearsal was interrupted after its first step, nothing is known.
    if (turns.error || turns.run.result.timelines.size() < 2) continue;
    const SpeedBeside speed = beside[i].rehearsal->speed(turns.run.result);
    for (PreparedRun& run : runs) {
      if (run.handle.rehearsal != beside[i].rehearsal) continue;
      run.out["beside"] = {
          {"slower", speed.slower}, {"steps", speed.steps}, {"compute_share", speed.compute_share}};
    }
  }
  push_userdata<FinishedTurns>(L, kTurnsType, std::move(runs), std::move(results));
  return 1;
}

int result_in_turns(lua_State* L) {
  auto& [runs, results] = check_userdata<FinishedTurns>(L, 1, kTurnsType);
  const auto i =
      static_cast<size_t>(check_index(L, 2, static_cast<int64_t>(runs.size()), "a run in turns"));
  if (results[i].error) std::rethrow_exception(results[i].error);
  push_result(L, runs[i], std::move(results[i].run));
  return 1;
}

int too_large_together(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const auto bytes_of = [](const Plan& plan) {
    return static_cast<double>(plan.memory.peak_bytes()) * static_cast<double>(plan.num_ranks());
  };
  double needed = 0;
  std::set<const Rehearsal*> rehearsals;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    const PlanHandle& handle = check_plan(L, lua_gettop(L));
    needed += bytes_of(*handle.plan);
    if (handle.rehearsal && rehearsals.insert(handle.rehearsal.get()).second)
      needed += bytes_of(*handle.rehearsal->beside(1).plan);
  }
  const AvailableMemory available = available_memory();
  if (needed <= static_cast<double>(available.bytes)) return 0;
  const std::string why = fmt::format(
      "together they need {:.1f} GiB, but this process may allocate only {:.1f} GiB more, limited "
      "by {}",
      needed / 0x1p30, static_cast<double>(available.bytes) / 0x1p30, available.limited_by);
  push_text(L, why);
  return 1;
}

const std::pair<const int64_t, Timeline>& step_given(lua_State* L, int index,
                                                     const PlanHandle& handle, const char* call) {
  lua_getfield(L, index, "timelines");
  if (lua_isnil(L, -1))
    throw user_error("{}: no result is given; give a result of plan:run or plan:simulate", call);
  const Timelines& all = check_userdata<Timelines>(L, lua_gettop(L), kTimelinesType);
  if (all.plan != handle.plan)
    throw user_error("{}: the result is of another plan; give a result of this plan", call);
  lua_getfield(L, index, "step");
  const bool first = lua_isnil(L, -1) && !all.steps.empty();
  const int64_t step = first ? all.steps.begin()->first : luaL_optinteger(L, -1, 1);
  lua_pop(L, 1);
  const auto found = all.steps.find(step);
  if (found == all.steps.end()) {
    throw user_error("{}: the result has no timeline of step {}; it has those of steps {} to {}",
                     call, step, all.steps.empty() ? 0 : all.steps.begin()->first,
                     all.steps.empty() ? 0 : all.steps.rbegin()->first);
  }
  return *found;
}

void open_run(lua_State* L) {
  new_inner_type<Timelines>(L, kTimelinesType);
  new_inner_type<FinishedTurns>(L, kTurnsType);
  set_functions(L, {{"run_in_turns", core_function<run_plans_in_turns>},
                    {"result_in_turns", core_function<result_in_turns>},
                    {"too_large_together", core_function<too_large_together>}});
}

}  // namespace moe::lua
