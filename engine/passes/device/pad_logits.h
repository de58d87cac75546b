// Rows of logits that begin at multiples of 128 bytes. Where the vocabulary is no multiple of 64,
// tensor cores cannot read rows of logits as vectors: the products of a head of GPT-2's vocabulary
// take 3.5 to 8 times as long on an H200. An edit of a plan's graph for a device, after round_once.
// Parameters, their gradients and states keep their shapes, since their rows are those of the
// model's width.
#pragma once

#include "engine/graph/graph.h"

namespace moe {

/// For each `linear` op in bf16 without bias whose result is the logits of the model's loss, alone
/// or by way of `scale`: the rounded weight gets rows of zeros, up to a multiple of 64 rows (attr
/// rows of `round`); so the logits get columns of zeros, which the loss leaves out (attr cols),
/// as linear_dw leaves out their gradients, which are 0. Other ops stay as they are.
Graph pad_logits(Graph graph);

}  // namespace moe
