#include "engine/passes/pass.h"

namespace moe {

/// Makes every op wait for the op before it in program order, so that nothing overlaps.
Schedule serial(const Graph& graph, Schedule schedule, const PassContext& context) {
  for (size_t i = 1; i < graph.num_ops(); ++i) {
    schedule.before(OpId(static_cast<int64_t>(i) - 1), OpId(static_cast<int64_t>(i)), context.stage,
                    "one by one");
  }
  return schedule;
}

}  // namespace moe
