#include "engine/cost/overlap.h"

#include <iterator>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {

bool is_gemm(const Graph& graph, OpId op) {
  const OpDef& def = graph.def(op);
  return def.work != nullptr && def.work(graph, graph.op(op), {}).gemm();
}

OverlapSlowdown OverlapTable::at(int32_t blocks) const {
  if (by_blocks.empty()) return {};
  const auto above = by_blocks.lower_bound(blocks);
  if (above == by_blocks.end()) return by_blocks.rbegin()->second;
  if (above->first == blocks || above == by_blocks.begin()) return above->second;
  const auto below = std::prev(above);
  const double part =
      static_cast<double>(blocks - below->first) / static_cast<double>(above->first - below->first);
  const auto between = [&](double a, double b) { return a + part * (b - a); };
  return {.gemm = between(below->second.gemm, above->second.gemm),
          .memory = between(below->second.memory, above->second.memory)};
}

std::string OverlapTable::describe() const {
  std::string text = source;
  for (const auto& [blocks, slowdown] : by_blocks) {
    text += fmt::format("; {} block{}: GEMMs x{:.3f}, others x{:.3f}", blocks,
                        blocks == 1 ? "" : "s", slowdown.gemm, slowdown.memory);
  }
  return text;
}

OverlapOps overlap_ops(const Graph& graph) {
  OverlapOps ops;
  double flops = 0, bytes = 0;
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    const OpDef& def = graph.def(id);
    const bool computes = def.collective == Collective::kNone && def.run.f32 != nullptr &&
                          def.work != nullptr && !runs_on_host(graph, op) && !is_view(graph, op);
    if (!computes) continue;
    const Work work = def.work(graph, op, {});
    double& most = work.gemm() ? flops : bytes;
    const double amount = work.gemm() ? work.flops : work.bytes;
    if (amount <= most) continue;
    most = amount;
    (work.gemm() ? ops.gemm : ops.memory) = id;
  }
  return ops;
}

}  // namespace moe
