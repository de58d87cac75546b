// Placement policies written in Lua. Their place() is called on rank threads, each with a state of
// its own in which the recipe was evaluated again, and by the simulator as rank 0. All ranks must
// get the same placements, so a policy sees nothing that differs between them.
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

/// From a stage of the library, whose options are checked, and the plan's model, cluster and
/// routing model.
std::shared_ptr<const LuaPlacement> placement_policy_of(lua_State* L, const Fields& stage,
                                                        const PlanSpec& spec);

/// What policies say by ctx:log, by step and MoE layer, of rank 0. Any thread may add.
class PlacementLog {
 public:
  void add(int64_t step, int64_t layer, const std::string& why);
  std::vector<std::string> at(int64_t step, int64_t layer) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::vector<std::string>> lines_;
};

/// For Policies::place. What goes wrong in a call is a UserError at the recipe's line; a call
/// that passes its deadline ends the process with status 3. peak_bytes: planned of a device, none
/// where it is not known. log: may be null.
RankPlacements rank_placements(const Host& host, std::shared_ptr<const LuaPlacement> policy,
                               std::optional<Bytes> peak_bytes, std::shared_ptr<PlacementLog> log);

/// [step][layer]: { layer = its block, owners = by expert, replicas, shadows = { { expert, devices
/// }, ... }, moves = residents that have come since the step before, copies, max_load, mean_load,
/// max_load_plain: rows of devices, log where the policy said something }, ids from 1. first_step:
/// of the run, from 0.
nlohmann::json placements_json(const RunResult& result, int64_t first_step,
                               const PlacementLog& log);

/// One call, which handles in Lua point to; what they may see until it is over.
struct PlaceCall {
  const PlaceInput* in = nullptr;  // null: it is over
  const LuaPlacement* policy = nullptr;
  std::optional<Bytes> left = {};  // memory of a device beyond what is planned
  std::function<void(const std::string& why)> log;
};

/// What stays in a state from call to call: the tables of ctx, and ctx.state by layer.
class PlacementTables {
 public:
  PlacementTables(lua_State* L, const LuaPlacement& policy);
  /// Pushes ctx's environment for a call.
  void push(lua_State* L, const PlaceInput& in);

 private:
  Reference model_, cluster_;
  std::map<int64_t, std::unique_ptr<Reference>> states_;  // by layer
};

/// Pushes ctx, load and p for a call, and takes their sight away at the end.
class PlacementViews {
 public:
  PlacementViews(lua_State* L, PlaceCall call, PlacementTables& tables);
  ~PlacementViews() { call_->in = nullptr; }
  PlacementViews(const PlacementViews&) = delete;
  PlacementViews& operator=(const PlacementViews&) = delete;

  /// The placement that place() has returned at `index`. Throws UserError for anything else.
  Placement result(lua_State* L, int index) const;

 private:
  std::shared_ptr<PlaceCall> call_;
};

}  // namespace moe::lua
