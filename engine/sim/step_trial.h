// StepTrial: what a step would take with another placement of one layer. A placement policy may ask
// it while the simulator runs its plan (ctx:simulate in Lua). It is a simulator of its own beside
// that of the run: it calls no policy, so it cannot be asked from within itself, and it changes
// nothing in the run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/placement/policy.h"
#include "engine/plan.h"
#include "engine/sim/step_replay.h"

namespace moe {

class StepTrial {
 public:
  /// Requires: the plan has a routing model and placement policies.
  explicit StepTrial(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  /// Returns the time of a step in which the layer of `in` has the loads of `in` and placement `p`,
  /// and every other layer those of its last call of placed(). A layer without such a call has the
  /// loads of `in` and plain expert parallelism. No expert moves in that step, and a device without
  /// room for its rows (model.rows_bound) takes as long as with room.
  Nanoseconds step_ns(const PlaceInput& in, const Placement& p);
  /// Keeps the loads of a call of the policy and the placement that it returned.
  void placed(const PlaceInput& in, const Placement& next);

 private:
  std::shared_ptr<const Plan> plan_;
  std::optional<StepReplay> replay_;  // made by the first call of step_ns()
  std::map<int64_t, std::pair<ExpertCounts, Placement>> layers_;  // of the last calls, by layer
};

}  // namespace moe
