// Joining: the programs of all pipeline ranks as one graph with one schedule, in which a transfer
// between two of them is one op. The order of lanes, legality and the simulation follow from it;
// each rank executes the program of its own pipeline rank.
#pragma once

#include <span>
#include <vector>

#include "engine/schedule/unroll.h"

namespace moe {

/// The step of all pipeline ranks.
struct Joined {
  ScheduledGraph step;
  LaneOrders orders;  // compute lanes are in the order of the programs
  // By pipeline rank, then by op or lane of its program: which one of `step` it is. A transfer is
  // an op of both programs, on a lane of both.
  std::vector<std::vector<OpId>> ops;
  std::vector<std::vector<LaneId>> lanes;
};

/// The names of the lanes on which a pipeline rank sends to, or receives from, another, from 0.
std::string lane_to(int64_t pipeline_rank);
std::string lane_from(int64_t pipeline_rank);

/// Joins the programs, one per pipeline rank (unroll()). An op `send` and the `receive` of the same
/// tensor and micro-batch become a `receive` with an input; two ops `sum_copies` become one with
/// two inputs, the pipeline rank of the one end and that of the other in the attribute `peer`. It
/// begins when both ranks have posted it. Ops of a name that an earlier rank has, and
/// lanes, get the number of the pipeline rank, from 1. Ops are in an order in which they can run.
/// Throws RunError naming the cycle if pipeline ranks wait for each other.
Joined join(std::span<const ScheduledGraph> programs);

}  // namespace moe
