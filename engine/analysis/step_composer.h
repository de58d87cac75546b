// Composing: the step of many micro-batches from the simulated step of few, turn by turn, without a
// plan and a simulation of its own. A turn takes the lanes of its rank from where the turns before
// leave them, on the ways on which its ops wait for each other; the clock of pipeline/timeline.h
// adds the turns up. What is behind all turns (sums of gradients, updates) is added op by op.
//
// Equal to the nanosecond to the simulation as long as the same ops take the same time in each
// micro-batch and lanes serve them in the same order. Left out: transfers that share links, and
// slow compute down, with ops of other turns than in the step of few; orders that arbiters choose
// differently; the time to wake lanes.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

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

  /// Returns the step of the turns `many`. Throws UserError naming a turn that the plan lacks.
  ComposedStep compose(const PipelineSpec& many) const;

 private:
  struct Block {
    pipeline::Paths paths;
    std::vector<OpId> ops;
    std::vector<std::pair<OpId, size_t>> left;  // ops that the tail waits for, and their ends
  };
  /// The entry of each stage, micro-batch and kind of work on its rank.
  using Entries = std::map<std::tuple<int64_t, int64_t, pipeline::Work>, size_t>;
  using Ways = std::vector<double>;  // to an op, from each input of a block
  struct Found {
    std::map<OpId, Ways> ways;
    std::vector<Ways> ends;  // by lane
  };

  bool is_handoff(OpId op) const;
  void take_times(const Timeline& timeline);
  void find_tail();
  void place_ops();
  void place(OpId op, const Entries& known);
  void connect();
  Found find_ways(size_t rank, Block& block, const Found& before);
  Nanoseconds tail_end(const std::vector<std::vector<int32_t>>& last, const pipeline::Timeline& t,
                       std::vector<double>& busy) const;

  const std::shared_ptr<const Plan> plan_;
  const Graph& graph_;
  const Precedence edges_;
  const std::vector<OpId> order_;           // as they began
  const std::vector<OpId> producers_;       // by tensor
  std::vector<pipeline::Row> rows_;         // by pipeline rank
  std::vector<std::vector<Block>> blocks_;  // by pipeline rank and entry
  std::vector<size_t> lane_of_;             // by op: a lane of its pipeline rank
  std::vector<size_t> lanes_;               // by pipeline rank: how many
  std::vector<OpId> before_;                // by op: the one before it on its lane
  std::vector<Nanoseconds> ns_;             // by op
  std::vector<bool> tail_;                  // by op: whether it is behind all turns
  std::vector<int64_t> entry_;              // by op: its entry, of a handoff that of its sender
  std::vector<int32_t> layer_;              // by op: its block, or that of what reads it; -1: none
  std::vector<int64_t> taken_;              // by handoff: the entry of its receiver
};

}  // namespace moe
