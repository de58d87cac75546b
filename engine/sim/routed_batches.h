// What Lina's inference needs of a routing model, batch after batch: how often each rank chooses
// each expert in each MoE layer, and what the paths of the tokens make expect of the layer
// (placement/path_profile.h). Does not depend on devices, rates or the system, so that the batches
// of one routing model serve many simulations.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/placement/path_profile.h"
#include "engine/routing/routing_model.h"

namespace moe {

/// One batch, by MoE layer.
struct RoutedBatch {
  std::vector<ExpertCounts> loads;
  std::vector<Estimate> estimates;  // made before the layer; no mass: none
};

class RoutedBatches {
 public:
  /// sizes: of all batches; step and layer are not looked at. profile: null: nothing is estimated.
  /// Throws UserError where the profile has another number of layers or experts.
  RoutedBatches(std::shared_ptr<const RoutingModel> routing, const RoutingQuery& sizes,
                int64_t layers, std::shared_ptr<const PathProfile> profile);
  const RoutingQuery& sizes() const { return sizes_; }
  int64_t num_layers() const { return layers_; }
  /// Layers of the paths by which estimates are made; 0: none are.
  int64_t path() const { return path_; }
  /// Asks the routing model once for each step, and keeps what it says. Throws what it throws.
  const RoutedBatch& at(int64_t step);
  /// Asks for these steps now; there are no others from then on. A profile may be large, and is not
  /// kept for them.
  void take(int64_t first, int64_t num);

 private:
  RoutedBatch routed(int64_t step) const;

  std::shared_ptr<const RoutingModel> routing_;
  RoutingQuery sizes_;
  int64_t layers_;
  int64_t path_ = 0;
  std::shared_ptr<const PathProfile> profile_;
  std::map<int64_t, RoutedBatch> batches_;  // by step
};

struct ProfileSpec {
  RoutingQuery
      first;  // sizes, and the routing model's step of the first batch; layer is not looked at
  int64_t layers = 1;  // MoE layers
  int64_t batches = 1;
  int64_t path = 3;
  int64_t keep = 0;  // probabilities a path; 0: k
  bool shorter = false;
};
/// The paths of the routing model's batches. Throws UserError naming "inference.<field>", and as
/// the model and check(PathOptions).
PathProfile profile_paths(const RoutingModel& routing, const ProfileSpec& spec);

/// Lina, figure 9, of a routing model: add_transitions over the batches, by layer from the second
/// on.
std::vector<ExpertCounts> transitions(const RoutingModel& routing, const RoutingQuery& first,
                                      int64_t batches, int64_t layers);

}  // namespace moe
