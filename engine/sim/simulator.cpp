#include "engine/sim/simulator.h"

#include "engine/replay/replay.h"

namespace moe {
namespace {

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions&) override {
    const CostModel& cost = *plan.spec.cost;
    RunResult result;
    result.provenance = Provenance::kSimulated;
    result.timelines.push_back(
        replay({.graph = plan.graph,
                .schedule = plan.schedule,
                .orders = plan.orders,
                .duration_ns = [&](OpId op, int32_t) { return cost.op_ns(plan.graph, op); },
                .bytes = [&](OpId op) { return wire_bytes(plan.graph, op, plan.spec.work); },
                .handoff_ns = cost.handoff_ns()}));
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
