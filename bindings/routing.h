// Routing models in Lua: a handle that a model's specification carries.
#pragma once

#include <lua.hpp>
#include <memory>

#include "engine/routing/routing_model.h"
#include "engine/routing/trace.h"

namespace moe::lua {

constexpr const char* kRoutingType = "routing model";

struct RoutingHandle {
  std::shared_ptr<const RoutingModel> routing;
};

/// The routing model of the specification's field `routing` ({ name =, handle = }) at `index`; null
/// where there is none.
std::shared_ptr<const RoutingModel> routing_in(lua_State* L, int index);

struct ReadTrace {
  std::shared_ptr<const Trace> trace;
  uint64_t hash;  // of the file
};
/// A trace that the recipe may read. Throws UserError as Files::readable and read_trace.
ReadTrace trace_in(lua_State* L, const std::string& path);

/// Pushes a handle of the routing model and its name.
void push_routing(lua_State* L, RoutingModel routing);

}  // namespace moe::lua
