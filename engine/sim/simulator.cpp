#include "engine/sim/simulator.h"

#include "engine/replay/replay.h"

namespace moe {
namespace {

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions&) override {
    ReplayInput input = replay_input(plan.graph, plan.schedule, plan.orders, *plan.spec.cost);
    input.bytes = [&](OpId op) { return wire_bytes(plan.graph, op, plan.spec.work); };
    RunResult result;
    result.provenance = Provenance::kSimulated;
    result.timelines.push_back(replay(input));
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
