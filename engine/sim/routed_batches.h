// RoutedBatches: the routing of each batch for inference as in the paper Lina. For each batch and
// MoE layer it holds how often the tokens of each rank choose each expert, and the popularity of
// the experts estimated from the paths of the tokens (their choices in earlier layers,
// placement/path_profile.h). None of this depends on devices, rates or the system, so the batches
// of one routing model can be used for many simulations.
#pragma once

#include <map>
#include <memory>
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

class RoutedBatches {
 public:
  /// `sizes` holds for all batches; its step and layer are ignored. If `profile` is null, no
  /// popularity is estimated. Throws UserError if the profile has another number of layers than
  /// `layers`, or of experts than `sizes`.
  RoutedBatches(std::shared_ptr<const RoutingModel> routing, const RoutingQuery& sizes,
                int64_t layers, std::shared_ptr<const PathProfile> profile);
  const RoutingQuery& sizes() const { return sizes_; }
  int64_t num_layers() const { return layers_; }
  /// Length, in layers, of the paths from which estimates are made; 0 if nothing is estimated.
  int64_t path() const { return path_; }
  /// Returns the batch of `step`. Queries the routing model the first time and keeps the result.
  /// Throws the errors of the routing model.
  const RoutedBatch& at(int64_t step);
  /// Routes `num` steps from `first` on at once, then releases the routing model and the profile,
  /// which may be large. From then on at() only accepts steps that are already routed.
  void take(int64_t first, int64_t num);

 private:
  RoutedBatch routed(int64_t step) const;

  std::shared_ptr<const RoutingModel> routing_;
  RoutingQuery sizes_;
  int64_t layers_;
  int64_t path_ = 0;
  std::shared_ptr<const PathProfile> profile_;
  std::map<int64_t, RoutedBatch> batches_;  // step -> batch
};

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
/// UserError naming "inference.<field>", and the errors of the routing model and of
/// check(PathOptions).
PathProfile profile_paths(const RoutingModel& routing, const ProfileSpec& spec);

/// Counts, for Lina's figure 9, how often tokens whose first choice in a layer is expert i have
/// expert j as first choice in the next layer, over all batches: at(i, j) of an ExpertCounts.
/// Element l of the result is for the transition from layer l to layer l + 1.
std::vector<ExpertCounts> transitions(const RoutingModel& routing, const RoutingQuery& first,
                                      int64_t batches, int64_t layers);

}  // namespace moe
