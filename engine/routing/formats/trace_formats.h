// Reads and writes routing traces of other tools, as strings. Each function's comment states the
// format and what is lost. Errors name the file, with line or field. Our own format is in trace.h.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/trace.h"

namespace moe {

struct NamedText {
  std::string name;
  std::string_view text;
};

/// Reads files of Megatron-LM's RouterTracer (its pull request 5220): one file per rank, one JSON
/// object per line,
///   {"step", "stage": "pre_dispatch", "block": "decoder", "layer", "rank", "num_tokens", "topk",
///    "top_indices": [[expert, ...], ...]}
/// Records of other stages or blocks (multi-token prediction) are ignored. Several records of one
/// step, layer and rank are micro-batches, one after the other. Steps, layers and ranks are those
/// that occur, ascending; `layer` becomes the block. A rank with fewer tokens than another has
/// tokens without choices at its end. Lost: hidden states, logits, all other fields. The tracer
/// itself writes the experts of a token in ascending order when its router returns a map.
/// experts: 0 means one more than the highest that occurs. Throws UserError for a missing field or
/// one of another type, an expert out of range, a number of tokens that changes between layers, and
/// a missing record.
Trace trace_of_megatron(const std::vector<NamedText>& files, int64_t experts);
/// Returns one text per rank in Megatron-LM's format, without tokens that have no choices. Throws
/// UserError for a token with fewer than k choices and for a trace with only counts.
std::vector<std::string> megatron_of_trace(const Trace& trace);

/// Reads TensorRT-LLM's routing pattern file of bench_moe, one layer of one step:
///   {"ep_size", "experts_per_rank", "slot_dispatch_matrix": [source][target rank],
///    "expert_histogram": [target rank][its experts]}
/// A slot here is one choice. Without a histogram, a rank's slots are spread evenly over its
/// experts. Returns a trace with only counts: a source's slots for a target are divided over its
/// experts in proportion. Throws UserError for sizes that do not fit ep_size, rows that k does not
/// divide, and a histogram row that is not the sum of the matrix's column.
Trace trace_of_tensorrt(const NamedText& file, int64_t k);
/// Returns one step and layer in TensorRT-LLM's format. Lost: other steps and layers, tokens, and
/// which source chose which expert of a rank. Throws UserError when experts do not divide over
/// ranks.
std::string tensorrt_of_trace(const Trace& trace, int64_t step, int64_t layer);

/// Reads lines "layer,expert", one per choice, with or without this header (written by llama.cpp's
/// example moe-trace). k lines are a token, consecutive lines of one layer are its tokens, and a
/// step begins where the layer number falls. One rank. Steps with fewer tokens get tokens without
/// choices at their end. experts: as in trace_of_megatron. Throws UserError naming the line.
Trace trace_of_csv(const NamedText& file, int64_t experts, int64_t k);
/// Returns lines "layer,expert". Lost: ranks (their tokens follow each other), the border between
/// steps of a single layer, and tokens without choices. Throws like megatron_of_trace.
std::string csv_of_trace(const Trace& trace);

/// Returns the content of a file that manifest number `manifest` names, relative to it.
using ReadTensor = std::function<std::string(size_t manifest, const std::string& file)>;

/// Reads traces of the token-imbalance benchmark proposed for Megatron-LM (trace v1 of pull request
/// 7488, benchmarks/moe/token_imbalance/trace.py): a folder per step and layer with manifest.json
/// and tensors of torch.save, of which expert_ids [tokens, topk] and source_rank [tokens] are read.
/// Steps and layers are those of the manifests, ascending. Lost: gates, seed, workload. Throws
/// UserError for another schema_version, a checksum, type or size that is not the manifest's, an
/// expert or a rank out of range, and manifests of different experts, topk or ranks.
Trace trace_of_token_imbalance(const std::vector<NamedText>& manifests, const ReadTensor& read);
/// Returns the files of one step and layer in that format, name and content. The gates of a token
/// are equal, since a trace has none; hidden_size and seed are 0. Throws UserError like
/// megatron_of_trace.
std::vector<std::pair<std::string, std::string>> token_imbalance_of_trace(const Trace& trace,
                                                                          int64_t step,
                                                                          int64_t layer);

/// Reads how many rows each rank computes: a CSV file whose first line names its columns, among
/// them iter, layer, rank and token_num, as the public artifact of LAER-MoE writes it (Hetu-
/// Galvatron, branch laer-moe). Where the file has further columns (method, model_name), `where`
/// states the values of the rows that count; columns that it does not mention must have one value.
/// Iterations, layers and ranks are those that occur, ascending. Returns a trace with only counts
/// and one expert per rank, or `experts_per_rank` with equally many rows (but for one), which a
/// token may choose at once: what the rank computes, whichever experts it holds. The file does not
/// say where rows come from: every rank sends the same number of rows. `node` successive ranks (0:
/// all) are a node and compute rows of their own node, from each of its ranks equally many (but for
/// one); what a node computes beyond its own rows comes in equal shares of its ranks from the nodes
/// that compute less, in order. even: all experts get as many rows, but for one. k: choices per
/// token. experts: those of the trace; 0: all, or node times experts_per_rank, where every node
/// has the same experts and computes only rows of its own (expert groups of a node). Throws
/// UserError naming the line for a missing column, a cell that is no number, and a row that is
/// there twice; for a row that is missing, rows of a layer that k times the ranks does not divide,
/// a node that does not divide the ranks, and another number of experts.
Trace trace_of_rank_loads(const NamedText& file, int64_t k,
                          const std::map<std::string, std::string>& where, int64_t node = 0,
                          int64_t experts_per_rank = 1, bool even = false, int64_t experts = 0);

}  // namespace moe
