#include "engine/sim/step_trial.h"

#include "engine/timeline/metrics.h"

namespace moe {
namespace {

/// Policies that keep every placement. A StepTrial gives its replay placements instead.
PlacementFunction keep(int64_t, const std::string&) {
  return [](const PlaceInput& in) { return in.now; };
}

/// Returns the loads of all ranks, where every group has these.
ExpertCounts in_all_groups(const ExpertCounts& loads, const Group& group, int64_t ranks) {
  ExpertCounts all(ranks, loads.experts);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t e = 0; e < loads.experts; ++e) all.at(rank, e) = loads.at(group.place(rank), e);
  }
  return all;
}

}  // namespace

Nanoseconds StepTrial::step_ns(const PlaceInput& in, const Placement& p) {
  if (!replay_) replay_.emplace(*plan_, keep);
  const int64_t ranks = plan_->graph.num_ranks;
  const Group holders = plan_->spec.model->grid(ranks).over(Axis::kEp);
  std::vector<ExpertCounts> loads;
  std::vector<Placement> placements;
  for (int64_t layer = 0; layer < replay_->num_layers(); ++layer) {
    const auto last = layers_.find(layer);
    const bool known = last != layers_.end() && layer != in.layer;
    loads.push_back(in_all_groups(known ? last->second.first : in.loads, holders, ranks));
    if (layer == in.layer) {
      placements.push_back(p);
    } else {
      placements.push_back(known ? last->second.second : Placement(p.bounds()));
    }
  }
  replay_->set_placed(loads, placements);
  return metrics(plan_->graph, replay_->run()).makespan_ns;
}

void StepTrial::placed(const PlaceInput& in, const Placement& next) {
  layers_.insert_or_assign(in.layer, std::pair(in.loads, next));
}

}  // namespace moe
