#include "engine/passes/device/own_attention.h"

#include <string>

#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"

namespace moe {

Graph own_attention(Graph graph) {
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const OpDef* const def = &graph.def(op);
    const bool attention = def == &ops::kAttend || def == &ops::kAttendDx;
    if (attention && stores_bf16(graph, graph.op(op))) {
      graph.op(op).attrs["kernels"] = std::string("own");
    }
  }
  return graph;
}

}  // namespace moe
