#include "engine/sim/simulator.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/op_def.h"
#include "engine/replay/replay.h"

namespace moe {
namespace {

bool is_transfer(const Graph& graph, const Span& span) {
  return graph.def(span.op).collective != Collective::kNone;
}

/// What collectives and compute that run beside each other on a core add to each other, by op;
/// nothing where none share a core. A collective takes its share evenly over its time.
std::vector<Nanoseconds> added_beside(const Plan& plan, const Timeline& timeline) {
  std::vector<Nanoseconds> added;
  for (const Span& t : timeline.spans) {
    if (!is_transfer(plan.graph, t) || t.end == t.begin) continue;
    const CoreSharing sharing = plan.spec.cost->sharing(plan.graph, t.op);
    if (sharing.taken == 0 && sharing.late == 0) continue;
    added.resize(plan.graph.num_ops());
    const double length = static_cast<double>(t.end - t.begin);
    const double share = std::min(1.0, static_cast<double>(sharing.taken) / length);
    for (const Span& span : timeline.spans) {
      const Nanoseconds both = std::min(span.end, t.end) - std::max(span.begin, t.begin);
      if (both <= 0 || is_transfer(plan.graph, span)) continue;
      added[span.op.index()] += std::llround(share * static_cast<double>(both));
      if (span.begin < t.end && t.end < span.end) added[t.op.index()] = sharing.late;
    }
  }
  return added;
}

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    ReplayInput input = replay_input(plan.graph, plan.schedule, plan.orders, *plan.spec.cost);
    input.bytes = [&](OpId op) { return wire_bytes(plan.graph, op, plan.spec.work); };
    input.keep_links = options.keep_links;
    RunResult result;
    result.provenance = Provenance::kSimulated;
    Timeline timeline = replay(input);
    if (const auto added = added_beside(plan, timeline); !added.empty()) {
      input.duration_ns = [=, alone = input.duration_ns](OpId op, int32_t rank) {
        return alone(op, rank) + added[op.index()];
      };
      timeline = replay(input);
    }
    result.timelines.push_back(std::move(timeline));
    result.metrics.push_back(metrics(plan.graph, result.timelines.front()));
    result.peak_bytes = plan.memory.peak_bytes();
    result.executed = {plan.orders.lanes};
    return result;
  }
};

}  // namespace

std::unique_ptr<Executor> make_simulator() {
  return std::make_unique<Simulator>();
}

}  // namespace moe
