// Placement policies written in Lua. Their place() is called by the simulator as rank 0, and in a
// run on rank threads; each has its own Lua state, in which the recipe was evaluated again. All
// ranks must get the same placement, so a policy has access only to values that are equal on all
// ranks. Built-in policies are in engine/placement.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/plan_spec.h"
#include "bindings/reference.h"
#include "engine/exec/executor.h"

namespace moe::lua {

/// Makes the policy of a stage, whose options the Lua library has checked; spec has the plan's
/// cluster and routing model.
std::shared_ptr<const LuaPlacement> placement_policy_of(lua_State* L, const Fields& stage,
                                                        const PlanSpec& spec,
                                                        const PolicyView& view);

/// The lines that policies write by ctx:log on rank 0, indexed by step and MoE layer. Its functions
/// may be called from any thread.
class PlacementLog {
 public:
  void add(int64_t step, int64_t layer, const std::string& why);
  std::vector<std::string> at(int64_t step, int64_t layer) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> lines_;
};

/// What the calls of a policy belong to; all of it may be absent.
struct PlacementRun {
  std::optional<Bytes> peak_bytes = {};  // planned peak memory of a device
  std::shared_ptr<PlacementLog> log = nullptr;
  std::shared_ptr<const Plan> simulated = nullptr;  // the plan, where the simulator runs it
};

/// Returns the function Policies::place of a run. A call throws UserError for an error of the
/// policy, and RunError if the machine fails, for example without memory; both name the recipe's
/// line. A call that passes its deadline ends the process with status 3.
RankPlacements rank_placements(const Host& host, std::shared_ptr<const LuaPlacement> policy,
                               const PlacementRun& run);

/// Returns the placements of a run, indexed by [step][layer]: { layer = number of the block, owners
/// = for each expert, replicas (residents other than the owner) and shadows = lists of { expert,
/// devices }, moves = number of residents that are new since the step before, copies = number of
/// shadows, max_load and mean_load = of the rows that each device computes, max_load_plain = the
/// same without the policy, log = lines of the policy, if any }. Ids count from 1. first_step: the
/// run's first step, from 0.
nlohmann::json placements_json(const RunResult& result, int64_t first_step,
                               const PlacementLog& log);

/// One call of a policy. The handles in Lua refer to it and have access to it until the call ends.
struct PlaceCall {
  const PlaceInput* in = nullptr;  // null after the call has ended
  const LuaPlacement* policy = nullptr;
  std::optional<Bytes> left = {};  // memory of a device that the plan does not use
  std::function<void(const std::string& why)> log;
  std::function<double(const Placement& p)> simulate_ms =
      nullptr;  // null where nothing is simulated
};

/// Values that a Lua state keeps from call to call: the tables of ctx, and ctx.state of each layer.
class PlacementTables {
 public:
  PlacementTables(lua_State* L, const LuaPlacement& policy);
  /// Pushes the table of ctx's fields for a call.
  void push(lua_State* L, const PlaceInput& in);

 private:
  Reference model_, cluster_;
  std::map<int64_t, std::unique_ptr<Reference>> states_;  // ctx.state, indexed by layer
};

/// Pushes the arguments ctx, load and p of a call; their use after the call is an error.
class PlacementViews {
 public:
  PlacementViews(lua_State* L, PlaceCall call, PlacementTables& tables);
  ~PlacementViews() { call_->in = nullptr; }
  PlacementViews(const PlacementViews&) = delete;
  PlacementViews& operator=(const PlacementViews&) = delete;

  /// Returns the placement at `index`, which place() returned. Throws UserError if it is not one.
  Placement result(lua_State* L, int index) const;

 private:
  std::shared_ptr<PlaceCall> call_;
};

}  // namespace moe::lua
