#include "engine/sim/simulator.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/op_def.h"
#include "engine/replay/replay.h"

namespace moe {
namespace {

/// What collectives take from each op that computes beside them, by op; nothing where they share no
/// core. A collective takes evenly over its time.
std::vector<Nanoseconds> taken_from_compute(const Plan& plan, const Timeline& timeline) {
  struct Transfer {
    Nanoseconds begin, end;
    double share;  // of the core
  };
  std::vector<Transfer> transfers;
  const auto is_transfer = [&](const Span& span) {
    return plan.graph.def(span.op).collective != Collective::kNone;
  };
  for (const Span& span : timeline.spans) {
    const Nanoseconds core = is_transfer(span) ? plan.spec.cost->core_ns(plan.graph, span.op) : 0;
    if (core == 0 || span.end == span.begin) continue;
    const double share = static_cast<double>(core) / static_cast<double>(span.end - span.begin);
    transfers.push_back({span.begin, span.end, std::min(1.0, share)});
  }
  std::vector<Nanoseconds> taken;
  if (transfers.empty()) return taken;
  taken.resize(plan.graph.num_ops());
  for (const Span& span : timeline.spans) {
    if (is_transfer(span)) continue;
    for (const Transfer& t : transfers) {
      const Nanoseconds both = std::min(span.end, t.end) - std::max(span.begin, t.begin);
      if (both > 0) taken[span.op.index()] += std::llround(t.share * static_cast<double>(both));
    }
  }
  return taken;
}

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions&) override {
    ReplayInput input = replay_input(plan.graph, plan.schedule, plan.orders, *plan.spec.cost);
    input.bytes = [&](OpId op) { return wire_bytes(plan.graph, op, plan.spec.work); };
    RunResult result;
    result.provenance = Provenance::kSimulated;
    Timeline timeline = replay(input);
    if (const auto taken = taken_from_compute(plan, timeline); !taken.empty()) {
      input.duration_ns = [=, alone = input.duration_ns](OpId op, int32_t rank) {
        return alone(op, rank) + taken[op.index()];
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
