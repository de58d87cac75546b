// Composing: the step of many micro-batches from the simulated step of few, turn by turn, without a
// plan and a simulation of its own. A turn takes the lanes of its rank from where the turns before
// leave them, on the ways on which its ops wait for each other; the clock of pipeline/timeline.h
// adds the turns up. What is behind all turns (sums of gradients, updates) is added op by op.
//
// Equal to the nanosecond to the simulation as long as the same ops take the same time in each
// micro-batch and lanes serve them in the same order. Left out: transfers that share links, and
// slow compute down, with ops of other turns than in the step of few; orders that arbiters choose
// differently; the time to wake lanes. A stack's host is a lane of each rank, which launches the
// ops of turn after turn, and then those behind all turns, also where their place is in a turn.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "engine/graph/op_def.h"
#include "engine/pipeline/timeline.h"
#include "engine/plan.h"
#include "engine/schedule/precedence.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// A step that was composed.
struct ComposedStep {
  Nanoseconds step_ns = 0;
  std::vector<Nanoseconds> idle_ns;  // by pipeline rank: the step without its compute
};

class StepComposer {
 public:
  /// timeline: a simulated step of `plan`. Throws UserError naming what cannot be composed: a
  /// routing, whose micro-batches differ, or an op that runs among those of another turn.
  StepComposer(std::shared_ptr<const Plan> plan, const Timeline& timeline);

  /// Returns the step of the turns `many`. Requires: the plan has all of them (likeness.h).
  ComposedStep compose(const PipelineSpec& many) const;

 private:
  using Ways = std::vector<double>;  // to an op, from each lane and arrival of its block
  /// The ops of an entry, with the ways through them.
  struct Block {
    pipeline::Paths paths;
    std::vector<OpId> ops, launches;  // as they began; as the host launches them
    std::map<OpId, Ways> ways, launched;
    std::map<OpId, size_t> left;  // ops that the tail waits for: their ends in `paths`
  };
  struct OpState {
    size_t lane = 0;     // of its pipeline rank
    OpId before;         // on the lane
    Nanoseconds ns = 0;  // how long it took
    bool tail = false;   // whether it is behind all turns
    int64_t entry = 0;   // in which it is; of a handoff, that of the sender
    int64_t taken = 0;   // of a handoff: the receiver's entry
    int32_t layer = -1;  // its block, or that of what reads it
  };
  /// The entry of each stage, micro-batch and kind of work on its rank.
  using Entries = std::map<std::tuple<int64_t, int64_t, pipeline::Work>, size_t>;

  bool is_handoff(OpId op) const { return graph_.def(op).collective == Collective::kHandoff; }
  size_t rank_of(OpId op) const { return static_cast<size_t>(graph_.op(op).pipeline_rank); }
  OpState& at(OpId op) { return ops_[op.index()]; }
  const OpState& at(OpId op) const { return ops_[op.index()]; }
  std::vector<OpId> waits_of(OpId op) const;
  void take_times(const Timeline& timeline);
  void find_tail();
  void find_layers();
  Entries add_blocks();
  void place(OpId op, const Entries& known);
  const Ways& launch(Block& block, OpId id) const;
  void find_ways(size_t rank, size_t entry);
  std::vector<double> launches_behind(const pipeline::Timeline& t) const;
  Nanoseconds tail_end(const std::vector<std::vector<int32_t>>& last, const pipeline::Timeline& t,
                       std::vector<double>& busy) const;

  const std::shared_ptr<const Plan> plan_;
  const Graph& graph_;
  const Precedence edges_;
  const std::vector<OpId> order_;           // as they began
  const std::vector<OpId> producers_;       // by tensor
  const std::vector<OpId> program_;         // as the hosts launch them
  const bool host_;                         // whether a host does; its lane is a rank's last
  std::vector<pipeline::Row> rows_;         // by pipeline rank
  std::vector<std::vector<Block>> blocks_;  // by pipeline rank and entry
  std::vector<size_t> lanes_;               // by pipeline rank: how many
  std::vector<OpState> ops_;
};

}  // namespace moe
