// The times of a real run's ops before it runs: each profiled alone on this machine, what transfers
// do to compute beside them, and what rehearsed steps say of ops between others. Not here: the plan
// and the replay that make a step of them.
#pragma once

#include <memory>
#include <string>

#include "engine/cost/cost_model.h"
#include "engine/plan.h"
#include "engine/profile/timed_policies.h"

namespace moe {

/// The run that is predicted, and where times are kept.
struct PredictOptions {
  std::string device = "cpu";  // or "cuda"
  bool bf16 = false;           // Precision::kBF16
  std::string cache;           // as ProfileCache's path
  bool emulated = false;       // the plan's cluster is the run's link
  bool check_finite = true;
  int32_t blocks = 0;       // of its transfers on a GPU; 0: none, or not known
  bool gpu_of_one = false;  // each rank has a GPU to itself, else all share one
  int64_t rehearse = 0;     // steps that are executed first, on cpu alone
  RankGates gate;           // Policies::gate
  RankPlacements place;     // Policies::place
};

struct Prediction {
  std::shared_ptr<const ProfileCost> cost;
  std::string warning;  // what was wrong with the cache, "": nothing
};

/// For the spec, whose cost is not read. Times that the cache lacks are measured when they are
/// asked for; those of overlap and rehearsal are measured here. Throws UserError for a device that
/// is not one or not here, and for steps to rehearse on cuda.
Prediction predicted_cost(const PlanSpec& spec, const PredictOptions& options);

/// The plan with ops that take in a step what they take alone, as before anything was rehearsed.
Plan before_rehearsal(const Plan& plan, const ProfileCost& cost);

}  // namespace moe
