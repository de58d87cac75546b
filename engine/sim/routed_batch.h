// The choices of tokens in batches of inference as in the paper Lina: how often they choose each
// expert, and the popularity of the experts estimated from the paths of the tokens (their choices
// in earlier layers, placement/path_profile.h).
#pragma once

#include <vector>

#include "engine/placement/path_profile.h"
#include "engine/routing/routing_model.h"

namespace moe {

/// The routing of one batch; both vectors are indexed by MoE layer.
struct RoutedBatch {
  std::vector<ExpertCounts> loads;
  /// Popularity estimated from earlier layers; `mass` is empty or all 0 if nothing is estimated.
  std::vector<Estimate> estimates;
};
/// Returns the choices of all ranks' tokens in the step query.step and what the profile estimates
/// from them; query.layer is ignored. Requires: the profile has the layers and experts of the
/// batch. Throws the errors of the routing model.
RoutedBatch routed_batch(const RoutingModel& routing, const RoutingQuery& query,
                         const PathProfile& profile);

/// `path`, `keep` and `shorter` are those of PathOptions (placement/path_profile.h).
struct ProfileSpec {
  RoutingQuery
      first;  // sizes, and the routing model's step of the first batch; its layer is ignored
  int64_t layers = 1;  // number of MoE layers
  int64_t batches = 1;
  int64_t path = 3;
  int64_t keep = 0;  // probabilities that the profile stores per path, the largest; 0 means k
  bool shorter = false;
};
/// Returns the profile of the token paths in `spec.batches` batches of the routing model. Throws
/// the errors of the routing model and of check(PathOptions).
PathProfile profile_paths(const RoutingModel& routing, const ProfileSpec& spec);

}  // namespace moe
