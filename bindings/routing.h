// Routing laws in Lua: a handle that a model's specification carries.
#pragma once

#include <lua.hpp>
#include <memory>

#include "engine/routing/law.h"
#include "engine/routing/trace.h"

namespace moe::lua {

constexpr const char* kLawType = "routing law";

struct RoutingHandle {
  std::shared_ptr<const RoutingLaw> law;
};

/// The law of the specification's field `routing` ({ name =, law = }) at `index`; null where there
/// is none.
std::shared_ptr<const RoutingLaw> law_in(lua_State* L, int index);

struct ReadTrace {
  std::shared_ptr<const Trace> trace;
  uint64_t hash;  // of the file
};
/// A trace that the recipe may read. Throws UserError as Files::readable and read_trace.
ReadTrace trace_in(lua_State* L, const std::string& path);

/// Pushes a handle of the law and its name.
void push_law(lua_State* L, RoutingLaw law);

}  // namespace moe::lua
