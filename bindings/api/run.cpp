// plan:run and plan:trace.
#include <map>

#include "bindings/host/field_json.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/infer.h"
#include "bindings/policy/gate.h"
#include "bindings/policy/pick.h"
#include "bindings/run.h"
#include "engine/analysis/planner_error.h"
#include "engine/exec/data.h"
#include "engine/run.h"
#include "engine/timeline/trace.h"

namespace moe::lua {
namespace {

using nlohmann::json;

struct RanSoFar {
  RunResult result;
  bool ended = true;  // else the run failed after these steps
};

// Half an inference is told to nobody: its failure goes on.
RanSoFar run_as_far(const Plan& plan, const std::string& executor, const RunOptions& options) {
  try {
    return {run(plan, executor, options)};
  } catch (const RunFailed& failed) {
    if (plan.spec.inference) throw;
    return {std::move(*failed.so_far), false};
  }
}

// Matrices uniform, LayerNorm weights 1, biases 0, as the reference model.
ParamInit reference_values(const ModelSpec& model) {
  return [infos = parameters(model)](uint64_t element, uint64_t parameter) {
    switch (infos[parameter].init) {
      case ParamInfo::Init::kOne:
        return 1.0;
      case ParamInfo::Init::kZero:
        return 0.0;
      default:
        return reference_init(element, parameter);
    }
  };
}

void set_data(const Host& host, const Fields& data, const PlanSpec& spec, RunOptions& options,
              json& out) {
  const ModelSpec& m = spec.model;
  const std::string kind = data.text("kind");
  if (kind == "reference") {
    options.data = reference_data(m.vocab, m.batch_per_device, spec.num_ranks, m.seq);
    options.train.eval_data = options.data;
    return;
  }
  if (kind != "text") throw user_error("data.kind: '{}'; give text or reference", kind);
  if (m.vocab < 256) throw user_error("model.vocab: {} is too small for bytes of a text", m.vocab);
  std::string path = data.text("path");
  if (path != default_corpus_path(host.options().scripts_dir)) {
    path = host.files().readable(path).string();
  }
  const auto corpus = std::make_shared<const TextCorpus>(read_text(path, m.seq));
  const auto seed = static_cast<uint64_t>(data.integer("seed", 1));
  const auto source = [&](bool held_out) {
    return text_data(corpus, held_out, m.batch_per_device, spec.num_ranks, m.seq, seed);
  };
  options.data = source(data.flag("held_out", false));
  options.train.eval_data = source(true);
  out["unigram_entropy"] = corpus->unigram_entropy;
  out["corpus"] = corpus->source;
}

// Paths as they are written become those of files.
void find_files(const Host& host, Checkpoints& files) {
  if (!files.resume_from.empty()) {
    files.resume_from = host.files().readable(files.resume_from).string();
  }
  if (!files.write_to.empty()) files.write_to = host.files().writable(files.write_to).string();
}

RunOptions options_of(Host& host, const Fields& f, const PlanBox& box,
                      const std::shared_ptr<PlacementLog>& log, json& out) {
  RunOptions options;
  read_fields(f, options);
  find_files(host, options.train.checkpoints);
  if (f.text("init", "reference") != "reference") {
    throw user_error("init: '{}' is not allowed; give reference", f.text("init"));
  }
  options.init = reference_values(box.plan->spec.model);
  if (f.has("data")) set_data(host, f.at("data"), box.plan->spec, options, out);
  if (f.has("record")) {
    host.files().writable(f.text("record"));  // refused before the run
    options.record = std::make_shared<Trace>();
  }
  if (box.gate) options.policies.gate = rank_gates(host, box.gate);
  options.policies.place = placements_of(host, box, log);
  if (box.picks && !box.picks->list.empty()) {
    options.policies.choose = executor_choose(host, *box.plan, *box.picks);
  }
  return options;
}

json executed_json(const RunResult& result, const Plan& plan) {
  json ranks = json::array();
  for (const auto& lanes : result.executed) {
    json by_lane = json::object();
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      json names = json::array();
      for (const OpId op : lanes[lane]) names.push_back(plan.graph.op(op).name);
      by_lane[plan.schedule.lanes[lane].name] = std::move(names);
    }
    ranks.push_back(std::move(by_lane));
  }
  return ranks;
}

/// By op: { error, num, samples = { step, layer (lists, from 1), phase, estimated_ms, real_ms } }.
json planner_error_json(const ModelErrors& errors) {
  json ops = json::object();
  for (int32_t i = 0; i < kNumModelOps; ++i) {
    const ModelError& error = errors[static_cast<size_t>(i)];
    json step = json::array(), layer = json::array(), phase = json::array();
    json estimated = json::array(), real = json::array();
    for (const ModelSample& sample : error.samples) {
      step.push_back(sample.step + 1);
      layer.push_back(sample.layer + 1);
      phase.push_back(phase_name(sample.phase));
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
    ops[model_op_name(static_cast<ModelOp>(i))] = std::move(op);
  }
  return ops;
}

// ended: the run did not fail, so that what is said of its end is good.
void fill_result(const RunResult& r, const Plan& plan, bool ended, json& out) {
  out.update(values_json(r));
  out["executed"] = executed_json(r, plan);
  out["samples_ms"] = json::array();
  for (const Metrics& m : r.metrics) out["samples_ms"].push_back(to_ms(m.makespan_ns));
  if (r.stop_reason.empty()) out.erase("stop_reason");
  if (!ended) {
    out.erase("digest");
    out.erase("peak_bytes");
  }
}

}  // namespace

RankPlacements placements_of(const Host& host, const PlanBox& box,
                             std::shared_ptr<PlacementLog> log) {
  if (!box.placement) return nullptr;
  return rank_placements(host, box.placement, box.plan->memory.peak_bytes(), std::move(log));
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
  const PlanBox& box = check_plan(L);
  Host& host = Host::of(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  host.end_loading();
  const Host::EngineCall in_engine(host);
  json out = json::object();
  const json values = to_json(L, 2, true);
  const Fields fields(values, "run");
  const auto log = std::make_shared<PlacementLog>();
  RunOptions options = options_of(host, fields, box, log, out);
  const int64_t first_step = options.first_step;
  const bool inference = box.plan->spec.inference;
  if (inference) set_inference(L, 2, fields, host, options.infer);
  const DataSource data = options.data;
  const std::string executor = fields.text("executor", "cpu");
  const std::shared_ptr<const Trace> record = options.record;
  options.processes = job_of(host);
  show_steps(host, options);
  auto [result, ended] = run_as_far(*box.plan, executor, options);
  const auto find = [&] {
    fill_result(result, *box.plan, ended, out);
    if (!result.placements.empty()) {
      out["placements"] = placements_json(result, first_step, *log);
      out["planner_error"] = planner_error_json(planner_errors(*box.plan, result));
    }
    if (inference) out["inference"] = inference_json(result, *box.plan, data, first_step);
    if (ended && record && record->steps > 0) {
      const std::filesystem::path path = host.files().writable(fields.text("record"));
      write_file(path, trace_bytes(*record));
      out["record"] = path.string();
    }
    if (options.train.eval_batches == 0 || result.stopped) out.erase("eval_loss");
    return out;
  };
  push_json(L, told(host, "result", find));
  push_userdata<Timelines>(L, kTimelinesType, box.plan, std::move(result.timelines));
  lua_setfield(L, -2, "timelines");
  return 1;
}

const Timeline* executed_step(lua_State* L, int index, const PlanBox& box, const char* call) {
  lua_getfield(L, index, "result");
  if (!lua_istable(L, -1)) return nullptr;
  lua_getfield(L, -1, "timelines");
  const Timelines& executed = check_userdata<Timelines>(L, -1, kTimelinesType);
  lua_getfield(L, index, "step");
  const auto step = static_cast<size_t>(luaL_optinteger(L, -1, 1));
  if (executed.plan != box.plan) throw user_error("{}: the result is of another plan", call);
  if (step < 1 || step > executed.steps.size()) {
    throw user_error("{}: step {} of {}", call, step, executed.steps.size());
  }
  return &executed.steps[step - 1];
}

int trace_plan(lua_State* L) {
  const PlanBox& box = check_plan(L);
  const Plan& plan = *box.plan;
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall in_engine(Host::of(L));
  if (!speaks(Host::of(L))) {  // rank 0 writes traces
    lua_pushliteral(L, "");
    return 1;
  }
  RunOptions options;
  options.policies.place = placements_of(Host::of(L), box);
  options.keep_links = true;
  lua_getfield(L, 2, "steps");
  options.steps = luaL_optinteger(L, -1, 1);
  const RunResult simulated = run(plan, "simulate", options);
  std::vector<LabelledTimeline> all = {{"simulated", &simulated.timelines.back()}};
  if (const Timeline* step = executed_step(L, 2, box, "trace")) {
    lua_getfield(L, 2, "step");
    all.push_back({fmt::format("executed step {}", luaL_optinteger(L, -1, 1)), step});
  }
  std::vector<std::string> lanes;
  for (const Lane& lane : plan.schedule.lanes) lanes.push_back(lane.name);
  const std::string text = trace_json(plan.graph, lanes, all);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

void open_run(lua_State* L) {
  static constexpr luaL_Reg kMethods[] = {{nullptr, nullptr}};
  new_type<Timelines>(L, kTimelinesType, kMethods);
}

}  // namespace moe::lua
