// From the library's plain tables to the engine's specifications.
#pragma once

#include <lua.hpp>
#include <memory>
#include <string>

#include "bindings/host/convert.h"
#include "bindings/reference.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/plan.h"

namespace moe::lua {

/// A gate that a recipe defines. Its functions live in a state of each thread that calls them and
/// are found there by name; the options go along as values.
struct GatePolicy {
  std::string name;
  nlohmann::json options;
  GateSpec spec;
};

/// A placement policy that a recipe defines; its functions are found as a gate's are.
struct LuaPlacement {
  std::string name;
  nlohmann::json options;         // params and fields that an instance may change
  PlacementStage stage;           // its policy: the name with a hash of the recipe's code
  nlohmann::json model, cluster;  // as ctx shows them
  std::string workload;           // of the routing model, "": none
  Bytes device_bytes = 0;         // memory of a device, 0: unknown
};

/// A schedule of the recipe that has left a pick behind. The executor calls it in a state of its
/// own, where the schedule is applied again, to what it found when the plan was made.
struct PickPolicy {
  std::string name;
  nlohmann::json options;
  Schedule before;
};
struct PickPolicies {
  double slot_occupancy = 1;
  std::vector<PickPolicy> list;
};

/// What core.plan makes: the plan, and what running and explaining it takes beside.
struct PlanHandle {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const ProfileCost> profile;     // null: costs are not profiled
  std::shared_ptr<const GatePolicy> gate;         // null: a built-in gate
  std::shared_ptr<const PickPolicies> picks;      // empty: no lane picks by a function
  std::shared_ptr<const LuaPlacement> placement;  // null: none, or a built-in one
};

ModelSpec model_of(const Fields& model);
Cluster cluster_of(const Fields& cluster);

/// The whole specification at `index` (a table as lua_core says). Functions of policies are kept by
/// reference. Throws UserError naming the field.
PlanSpec plan_spec_of(lua_State* L, int index, PlanHandle& handle);

}  // namespace moe::lua
