// StepReplay: simulates the steps of a plan on the event engine, one after the other. With a
// routing model each rank has its own work and bytes; if all ranks have the same, only one is
// simulated. Values that do not change between steps are computed once.
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
#include "engine/sim/routed_batch.h"
#include "engine/sim/routed_step.h"

namespace moe {

class StepReplay {
 public:
  /// Keeps a reference to the plan. `popularity` is InferOptions::popularity.
  explicit StepReplay(const Plan& plan, const RankPlacements& policies = {},
                      std::shared_ptr<const PathProfile> popularity = nullptr);
  StepReplay(const StepReplay&) = delete;

  /// Prepares step `step`: gets the choices of all ranks from the plan's routing model, if it has
  /// one, and passes them to the placement policies, which return placements. The policies are
  /// called for the steps in the order of the calls of set_step(). Throws the errors of the routing
  /// model and of the policies.
  void set_step(int64_t step);
  /// Prepares a step with these loads and placements, indexed by MoE layer, in place of set_step():
  /// no policy is called, no expert moves, and only run() and input() refer to it. The loads are
  /// those of the step, of which each micro-batch has an equal share; where each micro-batch makes
  /// placements of its own, those of each. Requires: a routing model.
  void set_placed(const std::vector<ExpertCounts>& kept, const std::vector<Placement>& placements);
  int64_t num_layers() const { return static_cast<int64_t>(layers_per_micro_batch()); }
  /// One record per layer with a placement policy, for the step that was set.
  const std::vector<PlacementRecord>& placements() const { return records_; }
  /// One record per layer with offloaded experts, for the step that was set.
  const std::vector<OffloadRecord>& offloads() const { return offloaded_->records(); }
  /// Returns, indexed by MoE layer, how often the step's tokens choose each expert, how many of
  /// these choices found a slot, and how many were dropped. Requires: a routing model.
  std::vector<MoeStats> moe() const;
  /// Whether it is known that the step that was set has the same timeline as the one set before it.
  bool as_before() const { return as_before_; }
  /// Why the step that was set cannot run: RoutedStep::no_room(); "" if it can.
  std::string no_room() const { return routed_ ? routed_->no_room() : ""; }
  /// RoutedStep::imbalance(); 1 without a routing model.
  double imbalance() const { return routed_ ? routed_->imbalance() : 1; }
  /// Simulates the step that was set. If `keep_links`, Timeline::links is recorded.
  Timeline run(bool keep_links = false);
  /// Returns the input that run() gives to the event engine, without the time that overlapping ops
  /// add to each other. Valid until the next set_step().
  const ReplayInput& input() const { return *input_; }
  /// Returns the work of ops by rank, to build a replay_input() of the same ranks under another
  /// schedule; null without a routing model.
  RoutedWorkOf routed_work() const;

 private:
  /// The placement policy of a layer, and the op (MoeOp::kPlace) whose attribute names the policy.
  struct Placing {
    OpId op;
    PlacementFunction policy;
  };
  void add_policies(const RankPlacements& policies);
  size_t layers_per_micro_batch() const {
    return routed_->layers().size() / static_cast<size_t>(micros_);
  }
  void place(int64_t step, const std::vector<ExpertCounts>& kept);
  void take_loads(std::vector<ExpertCounts> kept);
  void add_bytes(size_t layer, bool to_expert, std::vector<double>& bytes) const;
  std::vector<int32_t> choices_of(int64_t rank, size_t layer) const;
  void send_to_devices(std::vector<int32_t>& choices, int64_t source, size_t layer) const;
  RoutingQuery query_of(int64_t step, size_t layer) const;
  void set_ranks(int32_t num_ranks);
  void cost_loads();
  /// Calls priced_ns_ for each simulated rank, for a collective once per group.
  void price(OpId op, Nanoseconds* by_rank) const;
  Nanoseconds duration_ns(OpId op, int32_t rank) const;
  std::vector<Nanoseconds> added_beside(const Timeline& timeline) const;

  const Plan& plan_;
  const int64_t micros_;                           // micro-batches of a step
  std::unique_ptr<RoutedStep> routed_;             // null without a routing model
  std::unique_ptr<OffloadedExperts> offloaded_;    // null without a routing model
  std::shared_ptr<const PathProfile> popularity_;  // may be null
  std::vector<Placing> placing_;                   // indexed by MoE layer, or empty
  std::vector<Placement> state_;                   // indexed by MoE layer, before the place ops
  std::vector<Placement> placements_;              // in force in the step
  std::vector<Placement> next_;                    // in force in the next step
  std::vector<PlacementRecord> records_;
  std::vector<ExpertCounts> choices_, kept_;  // indexed by MoE layer
  int64_t step_ = -1;                         // that set_step() set; -1: loads of set_placed()
  bool as_before_ = false;
  std::vector<Nanoseconds> plain_ns_;   // indexed by op, for ops without routed work
  std::vector<Bytes> plain_bytes_;      // indexed by op, for ops without routed work
  std::vector<OpId> routed_ops_;        // ops whose time depends on the routing
  std::vector<int32_t> loaded_;         // indexed by op: its index in routed_ops_, or -1
  std::vector<Nanoseconds> loaded_ns_;  // indexed by (index in routed_ops_) * ranks + rank
  /// Indexed by op: for a collective without routed work that runs in several groups of simulated
  /// ranks, its times indexed by rank; else empty.
  std::vector<std::vector<Nanoseconds>> by_group_ns_;
  std::function<Nanoseconds(OpId, int32_t rank)> priced_ns_;  // by the cost model, not stored
  const std::vector<Nanoseconds>* added_ = nullptr;  // indexed by op * ranks + rank; may be null
  std::unique_ptr<ReplayInput> input_;
  std::unique_ptr<Engine> engine_;  // runs input_
};

}  // namespace moe
