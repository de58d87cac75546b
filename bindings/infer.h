// Running a plan for inference from Lua: profiles of paths, and what a run tells beside a step's
// figures.
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

/// The fields `parameters_from`, a file, and `popularity`, a handle or nil, of the options at
/// `index`.
void set_inference(lua_State* L, int index, const Fields& fields, const Host& host,
                   InferOptions& options);

/// { digest, of all predictions in order of batches and ranks; accuracy by batch, the share of
/// predictions that are the next token of the text; by MoE layer phase_2; by batch and MoE layer
/// placed_again and rows, of each rank, which are not there for experts in groups of ranks }.
nlohmann::json inference_json(const RunResult& result, const Plan& plan, const DataSource& data,
                              int64_t first_step);

}  // namespace moe::lua
