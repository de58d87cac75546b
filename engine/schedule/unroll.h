// Unrolling: turns the programs of one micro-batch of the stages that a pipeline rank holds into
// that of its step, in which turns follow each other and gradients are added up. A step without a
// pipeline is one rank with one stage, whose turns are the forward and the backward of each
// micro-batch.
#pragma once

#include <span>

#include "engine/pipeline/turn.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// A graph with its schedule.
struct ScheduledGraph {
  Graph graph;
  Schedule schedule;
};

/// A turn of a step; the forward of a micro-batch and its backward right behind it are one.
struct StepTurn {
  int32_t chunk = 0, micro = 0;
  bool beside = false;  // it runs beside the next turn
  std::string text;     // "F3"
};
struct StepTurns {
  std::vector<StepTurn> turns;
  std::vector<int32_t> turn_of;  // by op; behind all turns: their number
};
struct UnrolledStep {
  ScheduledGraph program;
  StepTurns turns;
};

/// Returns the turns of a step without a pipeline: F0, B0, F1, B1, ...
pipeline::Turns turns_in_order(int64_t micro_batches);

/// Returns the step of one pipeline rank. chunks: of each stage on the rank, the program of one
/// micro-batch; a turn runs its forward (F), of its backward what computes weight gradients
/// (Op::is_dw; W) or the rest (I), or all of it (B). An op of micro-batch m (from 0; Op::micro) has
/// the name that it has in its chunk, with "@m" after the name for m > 0; where two chunks have an
/// op of one name, the second's gets ".c" and its number.
///
/// Ops that depend on no input of the step, such as copies of experts by a placement of the step
/// before, run once, in the first turn of their kind. Sums of gradients over ranks, updates, and
/// what reads only gradients of parameters, run once, in the last turn of their chunk, or on a rank
/// with neighbours, where it is compute, behind all turns. What these
/// ops read of the micro-batches is added up, in the order of the turns: the gradient of a
/// parameter by the op that computes it, where this op has an accumulator, and by an op `add`
/// otherwise.
///
/// What a stage sends to another on this rank is read there without a transfer, and the gradients
/// of a parameter that both hold are added.
///
/// Order edges, holds, priorities and chunks of transfers are those of the schedules, in each
/// micro-batch; an edge that the order of turns contradicts is dropped, and the log says so. An
/// order edge of the stage "pipeline" from the last compute op of a turn to the first of the next
/// says that turns follow each other; a turn that is `beside` the next one has no such edge. Throws
/// UserError naming an op that runs once, but reads integers of each micro-batch that are no loads.
UnrolledStep unroll(std::span<const ScheduledGraph> chunks, const pipeline::Turns& turns);

}  // namespace moe
