// The building of a model by an architecture in Lua, with the builder `b`.
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>

#include "engine/model/model.h"

namespace moe::lua {

/// Calls build(b, o), the field `build` of the plan's table at `index`, with the fields `options`
/// of the model as o. spec: those of the fields that every model has. Throws UserError.
std::shared_ptr<Model> build_model(lua_State* L, int index, const nlohmann::json& options,
                                   const ModelSpec& spec, const GateSpec& gate, int64_t num_ranks);

}  // namespace moe::lua
