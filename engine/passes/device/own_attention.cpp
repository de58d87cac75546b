// Chooses this project's kernels for fused attention in bfloat16, in place of the library's (attr
// kernels of the ops). An edit of a plan's graph for a device, after all passes and before the
// schedulers, so that these use the costs of the kernels that really run (called by plan.cpp).
#include <string>

#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/pass.h"

namespace moe {

Graph own_attention(Graph graph, const PassContext&) {
  for (const OpId op : graph.op_ids()) {
    const OpDef* const def = &graph.def(op);
    const bool attention = def == &ops::kAttend || def == &ops::kAttendDx;
    if (attention && stores_bf16(graph, graph.op(op))) {
      graph.op(op).attrs["kernels"] = std::string("own");
    }
  }
  return graph;
}

}  // namespace moe
