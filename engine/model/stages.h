// The stages of a pipeline: the forward of a model, cut at the borders of its blocks. What a stage
// needs of an earlier one it receives (ops/handoff.cpp).
#pragma once

#include <vector>

#include "engine/model/model.h"

namespace moe {

/// Returns the stages of a model, each with its ops, parameters and states. layers: the number of
/// blocks of each stage, whose sum is that of the model; what comes before the blocks is in the
/// first stage, what comes behind them in the last, and what lies between two blocks in the stage
/// of what it reads (the norm before MTP layers). A tensor that a later stage reads passes
/// through all stages between, but for those that depend on no parameter: each stage makes its own.
/// A parameter that several stages read is held by each. Model::shared stays empty.
std::vector<Model> split_stages(const Model& model, const std::vector<int64_t>& layers);

/// Returns the number of blocks of a model, the last of which are its MTP layers.
int64_t num_blocks(const Model& model);
int64_t num_mtp_layers(const Model& model);

}  // namespace moe
