// StepReplay: the steps of a plan on the event engine, one after the other. Under a routing model
// every rank has its own compute and its own bytes; ranks that do the same are simulated once. What
// does not change from step to step is found out once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/exec/executor.h"
#include "engine/plan.h"
#include "engine/replay/engine.h"
#include "engine/replay/replay.h"
#include "engine/sim/offloaded_experts.h"
#include "engine/sim/routed_batches.h"
#include "engine/sim/routed_step.h"

namespace moe {

class StepReplay {
 public:
  /// Keeps a reference to the plan. batches: InferOptions::batches. Throws UserError where those
  /// are of other sizes than the plan.
  explicit StepReplay(const Plan& plan, const RankPlacements& policies = {},
                      std::shared_ptr<RoutedBatches> batches = nullptr);
  StepReplay(const StepReplay&) = delete;

  /// Asks the plan's routing model, where it has one, what the ranks choose in the step, and the
  /// placement policies, which see the steps in the order in which they are set, what they make of
  /// it. Throws what the routing model or a policy throws.
  void set_step(int64_t step);
  /// Of the step that was set, by layer with a placement.
  const std::vector<PlacementRecord>& placements() const { return records_; }
  /// Of the step that was set, by layer whose experts are offloaded.
  const std::vector<OffloadRecord>& offloads() const { return offloaded_->records(); }
  /// By MoE layer, what the step's tokens choose and what of it finds a place. Requires: a routing
  /// model.
  std::vector<MoeStats> moe() const;
  /// Whether the step that was set goes as the one before it.
  bool as_before() const { return as_before_; }
  /// keep_links: Timeline::links are kept.
  Timeline run(bool keep_links = false);
  /// The step as run() takes it, without what ops beside each other add to each other; good until
  /// the next set_step().
  const ReplayInput& input() const { return *input_; }
  /// For replay_input() of the same ranks under another schedule; null without a routing model.
  RoutedWorkOf routed_work() const;

 private:
  /// The policy of a layer, from its place op.
  struct Placing {
    OpId op;
    PlacementFunction policy;
  };
  void add_policies(const RankPlacements& policies);
  void check_batches() const;
  void place(int64_t step, const std::vector<ExpertCounts>& kept);
  void take_loads(std::vector<ExpertCounts> kept);
  void set_ranks(int32_t num_ranks);
  void cost_loads();
  Nanoseconds duration_ns(OpId op, int32_t rank) const;
  std::vector<Nanoseconds> added_beside(const Timeline& timeline) const;

  const Plan& plan_;
  std::unique_ptr<RoutedStep> routed_;           // null without a routing model
  std::unique_ptr<OffloadedExperts> offloaded_;  // the same
  std::shared_ptr<RoutedBatches> batches_;       // the same
  std::vector<Placing> placing_;                 // by MoE layer, or empty
  std::vector<Placement> state_;                 // by MoE layer, as ops find it
  std::vector<Placement> placements_;            // in force in the step
  std::vector<Placement> next_;                  // in force in the next one
  std::vector<PlacementRecord> records_;
  std::vector<ExpertCounts> choices_, kept_;  // by MoE layer
  bool as_before_ = false;
  std::vector<Nanoseconds> plain_ns_;                // by op, of those without routed work
  std::vector<Bytes> plain_bytes_;                   // by op
  std::vector<OpId> routed_ops_;                     // whose time follows the routing
  std::vector<int32_t> loaded_;                      // by op: its place there, -1: none
  std::vector<Nanoseconds> loaded_ns_;               // by that place and rank
  const std::vector<Nanoseconds>* added_ = nullptr;  // by op and rank; null: nothing
  std::unique_ptr<ReplayInput> input_;
  std::unique_ptr<Engine> engine_;  // of input_
};

}  // namespace moe
