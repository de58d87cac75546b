// The cost model for predicting an executed run before it runs. It contains the time of each op
// alone on this machine, the slowdown of compute during transfers, and from rehearsed steps how
// much longer ops take inside a step than alone. The prediction of a step from these times is not
// here: a plan is made (plan.h) and replayed (sim/).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "engine/cost/cost_model.h"
#include "engine/plan.h"
#include "engine/profile/rehearsal.h"

namespace moe {

/// Rehearsals that were executed before, by target, so that runs on one target share one.
using Rehearsals = std::map<std::string, std::shared_ptr<Rehearsal>>;

/// The run to be predicted, and the cache of times.
struct PredictOptions {
  std::string device = "cpu";  // or "cuda"
  bool bf16 = false;           // Precision::kBF16
  std::string cache;           // path of the ProfileCache
  bool emulated = false;       // whether the run emulates the plan's cluster as its link
  bool check_finite = true;
  double pace = 0;          // RunOptions::pace
  int32_t blocks = 0;       // thread blocks per transfer on a GPU; 0: no transfers, or not known
  bool gpu_of_one = false;  // whether each rank has its own GPU; else all ranks share one
  int64_t rehearse = 0;     // number of steps to rehearse; 0 for none; only on "cpu"
  /// Tokens of the rehearsal, and a text that names them; without, RehearsalOptions::data.
  DataSource tokens;
  std::string tokens_from;
  Rehearsals* rehearsals = nullptr;  // null: the rehearsal is not shared
  RankGates gate;                    // Policies::gate (exec/run_options.h)
  RankPlacements place;              // Policies::place
};

struct Prediction {
  std::shared_ptr<ProfileCost> cost;
  std::shared_ptr<Rehearsal> rehearsal;  // null: none
  std::string warning;                   // a problem with the cache, or ""
};

/// Returns the cost model for a run of `spec`, whose own cost is not read. Times that are not in
/// the cache are measured when the cost model first needs them, except those of overlap and
/// rehearsal, which this function measures; a rehearsal that is in `rehearsals` is not executed.
/// Throws UserError for a device that is unknown or that this machine does not have, and for steps
/// to rehearse on cuda.
Prediction predicted_cost(const PlanSpec& spec, const PredictOptions& options);

/// Returns a copy of the plan whose cost model is a copy of `cost` with these in-step factors; with
/// nullopt, each op takes the same time in a step as alone.
Plan with_in_step(const Plan& plan, const ProfileCost& cost, std::optional<InStep> in_step);

}  // namespace moe
