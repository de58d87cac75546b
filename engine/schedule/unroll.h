// Unrolling: turns the program of one micro-batch into that of a step of several micro-batches, one
// after the other, whose gradients are added up (gradient accumulation).
#pragma once

#include "engine/schedule/schedule.h"

namespace moe {

struct Unrolled {
  Graph graph;
  Schedule schedule;
};

/// Returns the step of `micro_batches` micro-batches, of which each runs the forward and the
/// backward of `graph` on inputs of its own. An op of micro-batch m (from 0; Op::micro) has the
/// name and the place that it has in `graph`, with "@m" after the name for m > 0.
///
/// Ops that depend on no input of the step, such as copies of experts by a placement of the step
/// before, run once, before the first micro-batch. Sums of gradients over ranks, updates, and what
/// reads only gradients of parameters, run once, in the last micro-batch, where the order of
/// `graph` has them. What these ops read of the micro-batches is added up, micro-batch by
/// micro-batch in ascending order: the gradient of a parameter by the op that computes it, where
/// this op has an accumulator, and by an op `add` otherwise.
///
/// Order edges, holds, priorities and chunks are those of `schedule`, in each micro-batch. An order
/// edge of the stage "pipeline" from each micro-batch's last compute op to the next one's first
/// says that turns follow each other. Throws UserError naming an op that runs once, but reads
/// integers of each micro-batch that are no loads.
Unrolled unroll(const Graph& graph, const Schedule& schedule, int64_t micro_batches);

}  // namespace moe
