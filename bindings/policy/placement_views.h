// The C++ values behind the arguments ctx, load and p of a placement policy, with the checks that
// their methods share. A handle of a call that has ended is refused. The methods are in
// bindings/api/placement.cpp and policy/placed.cpp.
#pragma once

#include "bindings/host/userdata.h"
#include "bindings/policy/placement.h"
#include "engine/placement/placement.h"

namespace moe::lua {

constexpr const char* kContextType = "placement context";
constexpr const char* kLoadsType = "loads";
constexpr const char* kPlacementType = "placement";

struct CallHandle {
  std::shared_ptr<PlaceCall> call;
};

struct PlacementHandle {
  std::shared_ptr<PlaceCall> call;
  Placement placement;
  bool in_force = false;                  // true for ctx.placement, which may only be read
  std::optional<DeviceLoads> loads = {};  // device loads under this placement, once computed
  bool shares = false;                    // while a function of p:share is asked

  Placement& edit() {
    if (shares) throw UserError("the function of p:share cannot edit the placement");
    if (in_force)
      throw UserError("ctx.placement cannot be edited; edit p, p:copy() or ctx.placement:copy()");
    loads.reset();
    return placement;
  }
};

template <class Handle>
Handle& check_handle(lua_State* L, int index, const char* type) {
  Handle& handle = check_userdata<Handle>(L, index, type);
  if (handle.call->in == nullptr) {
    throw UserError(
        "this value is from a call of a placement policy that has ended; use it only during the "
        "call");
  }
  return handle;
}

inline const PlaceCall& check_call(lua_State* L, const char* type) {
  return *check_handle<CallHandle>(L, 1, type).call;
}

inline PlacementHandle& check_placement(lua_State* L) {
  return check_handle<PlacementHandle>(L, 1, kPlacementType);
}

inline int64_t check_expert(lua_State* L, int index, const PlaceCall& call) {
  return check_index(L, index, call.in->loads.experts, "expert");
}

inline int64_t check_device(lua_State* L, int index, const PlaceCall& call) {
  return check_index(L, index, call.in->loads.sources, "device");
}

inline int push_number(lua_State* L, double value) {
  lua_pushnumber(L, value);
  return 1;
}

inline int push_number(lua_State* L, int64_t value) {
  return push_number(L, static_cast<double>(value));
}

/// Makes the type of p (policy/placed.cpp).
void open_placed(lua_State* L);

}  // namespace moe::lua
