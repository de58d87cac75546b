#include "engine/routing/executed_routing.h"

#include "engine/base/errors.h"
#include "engine/base/index.h"

namespace moe {

RoutingModel executed_routing(std::vector<std::vector<std::vector<int64_t>>> used) {
  RoutingModel routing;
  routing.name = "the executed steps";
  routing.loads = [used = std::move(used)](const RoutingQuery& q) {
    ExpertCounts counts(q.ranks, q.experts);
    const size_t rows = counts.rows.size(), layer = index(q.layer);
    const size_t micros =
        used.empty() || layer >= used[0].size() ? 0 : used[0][layer].size() / rows;
    const size_t step = micros == 0 ? used.size() : index(q.step) / micros;
    if (step >= used.size() || layer >= used[step].size() ||
        used[step][layer].size() != micros * rows) {
      throw user_error(
          "the routing of {} executed steps has no counts of step {} and MoE layer {} for {} ranks "
          "and {} experts",
          used.size(), q.step, q.layer, q.ranks, q.experts);
    }
    const auto first =
        used[step][layer].begin() + static_cast<std::ptrdiff_t>(index(q.step) % micros * rows);
    counts.rows.assign(first, first + static_cast<std::ptrdiff_t>(rows));
    return counts;
  };
  return routing;
}

}  // namespace moe
