#include "engine/sim/simulator.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/ops/swap_in.h"
#include "engine/sim/step_replay.h"

namespace moe {
namespace {

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    if (options.infer.popularity) {
      ops::check_popularity(plan.graph, plan.spec.model->num_moe_layers(),
                            *options.infer.popularity);
    }
    RunResult result;
    result.provenance = Provenance::kSimulated;
    StepReplay replay(plan, options.policies.place, options.infer.popularity);
    const int64_t steps = plan.spec.routing == nullptr ? 1 : options.steps;
    const int64_t links_of = std::min(options.links_of_step, steps - 1);
    for (int64_t step = 0; step < steps; ++step) {
      check_stop();
      replay.set_step(options.first_step + step);
      if (result.stop_reason.empty() && !replay.no_room().empty()) {
        result.stop_reason =
            fmt::format("step {}: {}", options.first_step + step + 1, replay.no_room());
      }
      if (plan.spec.routing != nullptr) result.load_imbalance.push_back(replay.imbalance());
      if (!replay.placements().empty()) result.placements.push_back(replay.placements());
      if (plan.spec.inference && plan.spec.routing != nullptr) {
        if (!replay.offloads().empty()) result.offloads.push_back(replay.offloads());
        result.moe.push_back(replay.moe());
      }
      if (replay.as_before() && step != links_of) {
        result.timelines.push_back(result.timelines.back());
        result.metrics.push_back(result.metrics.back());
        result.bounds.push_back(result.bounds.back());
      } else {
        result.timelines.push_back(replay.run(step == links_of));
        result.metrics.push_back(metrics(plan.graph, result.timelines.back()));
        result.bounds.push_back(lower_bound(replay.input()));
      }
      if (options.on_step && !options.on_step(options.first_step + step, 0)) break;
    }
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
