// Reads the engine's specification of a plan from the tables of the Lua library, and holds what a
// plan needs in addition when it is run: policies that a recipe defines. The tables were checked by
// the library; here only what the engine cannot use is refused.
#pragma once

#include <lua.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bindings/host/convert.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/plan.h"
#include "engine/profile/rehearsal.h"
#include "engine/routing/gate_sample.h"

namespace moe {
class StepComposer;
}

namespace moe::lua {

/// A gate that a recipe defines. Each thread that calls the gate's functions has its own Lua state,
/// in which the gate is looked up by name; the options are passed as values.
struct GatePolicy {
  std::string name;
  nlohmann::json options;
  GateSpec spec;
  int64_t devices = 1, devices_per_node = 1;  // of the group that holds all experts
};

/// A placement policy that a recipe defines; like a gate, it is looked up by name in each state.
struct LuaPlacement {
  std::string name;
  nlohmann::json options;         // params and fields that an instance may change
  PlacementStage stage;           // stage.policy: the name with a hash of the recipe's code
  nlohmann::json model, cluster;  // as recipes read them in ctx
  std::string workload;           // name of the routing model; "" if there is none
  Bytes device_bytes = 0;         // memory of a device; 0 if unknown
  bool library = false;           // whether the Lua library defines it, not the recipe
};

/// A schedule policy in Lua that gave a lane a pick, a function that picks the lane's next op. The
/// executor calls the pick in another Lua state, in which the policy is applied again to `before`,
/// the schedule with which it was called when the plan was made.
struct PickPolicy {
  std::string name;
  nlohmann::json options;
  Schedule before;
};
/// What policies in Lua see of a plan in addition to a PassContext.
struct PolicyView {
  nlohmann::json model;       // ctx.model: the fields of the recipe's model, with sizes per device
  double slot_occupancy = 1;  // WorkContext::slot_occupancy, for the work of ops
};

struct PickPolicies {
  std::shared_ptr<const PolicyView> view;
  std::vector<PickPolicy> list;
};

/// What a plan's costs and its simulations assume of the routing.
struct AssumedRouting {
  std::string gate;  // "" if no gate runs
  /// What the gate read: "even", the name of a workload, or "the rehearsed steps".
  std::string scores;
  std::string choices;  // the workload or trace whose choices replace the gate; else ""
  MeanRouting sample;   // under a workload or trace, of the last layer in the first step
  double dropped() const { return sample.choices > 0 ? 1 - sample.kept / sample.choices : 0; }
};

/// The value behind a plan in Lua: the plan, and what running and explaining it needs in addition.
struct PlanHandle {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<ProfileCost> profile;    // null if ops are not profiled
  std::shared_ptr<Rehearsal> rehearsal;    // of `profile`; null: none
  bool routes_as_rehearsed = false;        // whether predictions assume the routing of `rehearsal`
  std::shared_ptr<const GatePolicy> gate;  // null for a built-in gate
  std::shared_ptr<const PickPolicies> picks;      // list is empty: no picks in Lua
  std::shared_ptr<const LuaPlacement> placement;  // null for no placement or a built-in policy
  AssumedRouting routing;
  std::shared_ptr<const StepComposer> composer;  // null until a step is composed
};

ModelSpec model_of(const Fields& model);
Cluster cluster_of(const Fields& cluster);
/// Returns the measured times of collectives of a cluster, which replace the closed forms.
std::map<Collective, InterpolatedTable> tables_of(const Fields& cluster);

/// Reads the table { ranks, stages, micro_batches, placement, rows = a text per pipeline rank,
/// layers = the number of blocks of each stage with mtp_layers = those that are MTP layers, or nil:
/// equally many, and MTP layers in the last }. Each of the rank's turns is a cell of its row.
/// Throws UserError for blocks that cannot be spread over the stages.
PipelineSpec pipeline_of(const Fields& fields, const Model& model);

/// Reads the whole specification at `index`, a table as target.lua makes it. Functions of policies
/// are kept by reference. handle: receives what is needed in addition to the plan. program: the
/// plan that another process has made, packed; without it the model is built. Throws UserError
/// naming the field.
PlanSpec plan_spec_of(lua_State* L, int index, PlanHandle& handle,
                      const std::optional<std::string_view>& program = {});

}  // namespace moe::lua
