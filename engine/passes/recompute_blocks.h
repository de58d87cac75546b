// Recomputation of transformer blocks, or of parts of them (gradient checkpointing: Chen et al.
// 2016, arXiv 1604.06174; per block, and selective, as in Korthikanti et al. 2022, arXiv
// 2205.05198, section 5): the pass recompute.
#pragma once

#include <string>

#include "engine/graph/graph.h"

namespace moe {

/// Lets the backward of each block read activations that are made again instead of kept. what: of
/// the whole block ("blocks"), or joined by "+" what norms, activation functions and attention
/// give ("norms", "activations", "attention"), and all between router and residual ("experts").
/// The ops of the forward that make them, up to the block's inputs, are added once more right
/// before the block's backward: phase recompute, names "<op>.again" and "<tensor>.again", otherwise
/// equal. Of a block's forward the following is kept:
///   * what ops outside the block read: the outputs of a block are the next one's inputs;
///   * outputs of ops that must not run twice: those that make integers (choices, counts, row ends,
///     placements), losses, ops on a host lane, that overwrite a tensor, or of a collective other
///     than an exchange of rows;
///   * what shares its storage with one of these, or with a parameter.
/// Exchanges of rows do run again. Every block is treated alike, also the last, as in Megatron-LM:
/// what the head's backward leaves in memory is not part of any block. Requires: the whole step,
/// after all passes that edit the graph. The losses and gradients do not change.
Graph recompute_blocks(const Graph& graph, const std::string& what);

}  // namespace moe
