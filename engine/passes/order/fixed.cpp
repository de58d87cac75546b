#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The all-to-alls of one layer's backward, or those that run again before it: those to the experts
/// and those back, with all parts.
struct Pair {
  int32_t layer;
  Phase phase;
  OpId first, last;  // in program order, which is also the order on their lane
};

std::vector<Pair> backward_pairs(const Graph& graph) {
  std::vector<Pair> pairs;
  for (const OpId op : graph.op_ids()) {
    if (graph.def(op).collective != Collective::kAllToAll) continue;
    const auto [layer, phase] = std::pair(graph.op(op).layer, graph.op(op).phase);
    if (phase != Phase::kBackward && phase != Phase::kRecompute) continue;
    if (pairs.empty() || pairs.back().layer != layer || pairs.back().phase != phase) {
      pairs.push_back({layer, phase, op, op});
    }
    pairs.back().last = op;
  }
  return pairs;
}

}  // namespace

/// Lets all-reduces run only between the backward's pairs of all-to-alls: each all-reduce runs
/// after the last pair that begins before the all-reduce in program order, and before the next
/// pair, which waits for it (Lina, "Fixed" of figure 14). An all-reduce before the first or after
/// the last pair is not restricted on that side.
Schedule fixed(const Graph& graph, Schedule schedule, const PassContext& context) {
  const std::vector<Pair> pairs = backward_pairs(graph);
  if (pairs.empty()) context.skip("the backward has no all-to-alls");
  bool found = false;
  size_t next = 0;  // the first pair that begins after the all-reduce in program order
  for (const OpId op : graph.op_ids()) {
    if (!is_sync(graph.def(op).payload)) continue;
    found = true;
    while (next < pairs.size() && pairs[next].first < op) ++next;
    if (next > 0) schedule.before(pairs[next - 1].last, op, context.stage, "after the pair");
    if (next < pairs.size()) {
      schedule.before(op, pairs[next].first, context.stage, "before the next pair");
    }
  }
  if (!found) context.skip("there is no all-reduce");
  return schedule;
}

}  // namespace moe
