// Running a plan for inference from Lua: the options that only inference has, and the results of a
// run in addition to the metrics of its steps. The general part of a run is in run.h.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>

#include "bindings/host/convert.h"
#include "bindings/host/host.h"
#include "engine/exec/executor.h"

namespace moe::lua {

constexpr const char* kProfileType = "path profile";

struct ProfileHandle {
  std::shared_ptr<const PathProfile> profile;
};

/// Sets `options` from the fields of the table at `index`: `parameters_from`, a file, and
/// `popularity`, the handle of a profile; both may be absent. Predictions are always kept.
void set_inference(lua_State* L, int index, const Fields& fields, const Host& host,
                   InferOptions& options);

/// Returns { digest of all predictions in order of batches and ranks, accuracy[batch] = the share
/// of predictions that are the next token of the text, phase_2[MoE layer] = whether experts may be
/// placed again, placed_again[batch][MoE layer] = whether they were, rows[batch][MoE layer][rank]
/// that the rank computed, answer_ms[batch] and layer_times[batch][MoE layer] of served_batch() }.
/// `rows` is absent if experts are in groups of ranks (ep).
nlohmann::json inference_json(const RunResult& result, const Plan& plan, const DataSource& data,
                              int64_t first_step);

}  // namespace moe::lua
