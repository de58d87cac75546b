#include "engine/routing/executed_routing.h"

#include "engine/base/errors.h"
#include "engine/base/index.h"

namespace moe {

RoutingModel executed_routing(std::vector<std::vector<std::vector<int64_t>>> used) {
  RoutingModel routing;
  routing.name = "the executed steps";
  routing.loads = [used = std::move(used)](const RoutingQuery& q) {
    ExpertCounts counts(q.ranks, q.experts);
    const size_t step = index(q.step), layer = index(q.layer);
    if (step >= used.size() || layer >= used[step].size() ||
        used[step][layer].size() != counts.rows.size()) {
      throw user_error(
          "the routing of {} executed steps has no counts of step {} and MoE layer {} for {} ranks "
          "and {} experts",
          used.size(), q.step, q.layer, q.ranks, q.experts);
    }
    counts.rows = used[step][layer];
    return counts;
  };
  return routing;
}

}  // namespace moe
