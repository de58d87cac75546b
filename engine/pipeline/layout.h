// Which layers each stage of a pipeline has, as Megatron-LM's --pipeline-model-parallel-layout says
// it (core/transformer/pipeline_parallel_layer_layout.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe::pipeline {

/// Returns the layers of each stage, stage s being on rank s mod `ranks`: E is the embedding, t a
/// decoder layer, m an MTP layer, L the loss. In the text | ends a stage, x*n and (...)*n repeat,
/// commas and spaces mean nothing, and stages may be empty. Throws UserError with one of the codes
/// bad_number (ranks), unknown_symbol, stages_not_multiple (of the ranks), embedding (not once and
/// first), loss (not once and last), mtp_before_decoder.
std::vector<std::string> parse_layout(std::string_view text, int64_t ranks);

}  // namespace moe::pipeline
