// Routing traces of other tools, as texts. What was taken as each format, and what is lost, is said
// at each function. `source` names the file in errors, with the line or the field.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/routing/trace.h"

namespace moe {

struct NamedText {
  std::string name;
  std::string_view text;
};

/// Megatron-LM's RouterTracer (its pull request 5220): a file per rank, a JSON object a line,
///   {"step", "stage": "pre_dispatch", "block": "decoder", "layer", "rank", "num_tokens", "topk",
///    "top_indices": [[expert, ...], ...]}
/// Records of other stages or blocks (multi-token prediction) are left out. Several records of one
/// step, layer and rank are micro-batches, one after the other. Steps, layers and ranks are those
/// that occur, ascending; `layer` becomes the block. A rank with fewer tokens than another has
/// places without choice at its end. Lost: hidden states, logits, fields beside these; the tracer
/// itself gives the experts of a token in ascending order where its router returns a map.
/// experts: 0 for one more than the highest that occurs. Throws UserError: a field that is missing
/// or of another type, an expert out of range, a number of tokens that changes between layers, a
/// record that is missing.
Trace trace_of_megatron(const std::vector<NamedText>& files, int64_t experts);
/// By rank. Tokens without choice are left out; throws UserError where one has some choices only,
/// or counts alone are known.
std::vector<std::string> megatron_of_trace(const Trace& trace);

/// TensorRT-LLM's routing pattern file of bench_moe, one layer of one step:
///   {"ep_size", "experts_per_rank", "slot_dispatch_matrix": [source][target rank],
///    "expert_histogram": [target rank][its experts]}
/// A slot is one choice. Without a histogram, a rank's slots are even over its experts. Makes a
/// trace of counts alone: a source's slots for a target are dealt over its experts in proportion.
/// Throws UserError: other sizes than ep_size says, rows that k does not divide, a histogram whose
/// row is not the sum of the matrix's column.
Trace trace_of_tensorrt(const NamedText& file, int64_t k);
/// One step and layer. Lost: all others, tokens, who of the sources chose which expert of a rank.
/// Throws UserError where experts do not divide over ranks.
std::string tensorrt_of_trace(const Trace& trace, int64_t step, int64_t layer);

/// Lines "layer,expert", one per choice, with or without this header (as llama.cpp's example
/// moe-trace writes them): k lines are a token, lines of one layer in a row are its tokens, and a
/// step begins where the layer falls. One rank. Steps with fewer tokens have places without choice
/// at their end. experts: as above. Throws UserError with the line.
Trace trace_of_csv(const NamedText& file, int64_t experts, int64_t k);
/// Lost: ranks (their tokens stand in order), steps of one layer, tokens without choice; throws as
/// megatron_of_trace.
std::string csv_of_trace(const Trace& trace);

}  // namespace moe
