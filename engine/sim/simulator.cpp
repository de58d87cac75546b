#include "engine/sim/simulator.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/sim/step_replay.h"

namespace moe {
namespace {

/// Returns InferOptions::batches. If these are null but InferOptions::popularity and a routing
/// model are given, returns new batches, which estimate popularity from the choices of each token.
std::shared_ptr<RoutedBatches> batches_of(const Plan& plan, const RunOptions& options) {
  const InferOptions& infer = options.infer;
  if (infer.batches || !infer.popularity || plan.spec.routing == nullptr) return infer.batches;
  const std::vector<MoeLayer> layers = moe_layers(plan.graph);
  if (layers.empty()) return nullptr;
  return std::make_shared<RoutedBatches>(plan.spec.routing,
                                         RoutingQuery{.ranks = plan.graph.num_ranks,
                                                      .tokens = layers[0].tokens,
                                                      .experts = layers[0].experts,
                                                      .k = layers[0].k},
                                         static_cast<int64_t>(layers.size()), infer.popularity);
}

class Simulator : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    RunResult result;
    result.provenance = Provenance::kSimulated;
    StepReplay replay(plan, options.policies.place, batches_of(plan, options));
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
