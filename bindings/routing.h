// Routing models as values in Lua: a handle, which a plan's specification contains. The routing
// models are in engine/routing, the functions for recipes in api/routing.cpp.
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

/// Returns the routing model in the field `routing` ({ name =, handle = }) of the specification at
/// `index`; null if there is none.
std::shared_ptr<const RoutingModel> routing_in(lua_State* L, int index);

struct ReadTrace {
  std::shared_ptr<const Trace> trace;
  uint64_t hash;  // hash of the file's content
};
/// Reads a trace file that the recipe may read. Throws UserError as Files::readable and read_trace.
ReadTrace trace_in(lua_State* L, const std::string& path);

/// Pushes a handle of the routing model and its name.
void push_routing(lua_State* L, RoutingModel routing);

}  // namespace moe::lua
