// Recorded routing: the experts that tokens chose, indexed by step, MoE layer, rank and token, as a
// value, as bytes of the project's own format, and as a routing model that replays it. Numbers in
// files and in errors about files count from 0. Recording is in
// exec/run_loop.cpp.
//
// The format, little-endian, without gaps:
//   "MOETRACE"                          8 bytes
//   u32 version                         1
//   u32 bytes per choice                1 (experts <= 255; 255: none), 2 (65535: none), 0: only
//                                       counts, no choices
//   i64 steps, layers, ranks, tokens (per rank), experts, k
//   i32 blocks[layers]                  the model's block of each MoE layer, ascending from 0
//   steps * layers records, the layers of a step together:
//     u32 number of the record          from 0, to detect content out of order
//     u32 counts[ranks, experts]        choices of each rank
//     choices[ranks, tokens, k]         best first
//   u64 FNV-1a 64 of all bytes before
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/routing/routing_model.h"

namespace moe {

constexpr uint16_t kNoExpert = 0xFFFF;

struct Trace {
  int64_t steps = 0, layers = 0, ranks = 0, tokens = 0, experts = 0, k = 1;
  std::vector<int32_t> blocks;    // [layers]
  std::vector<uint16_t> choices;  // [steps, layers, ranks, tokens, k]; empty: only counts
  std::vector<uint32_t> counts;   // [steps, layers, ranks, experts]

  bool operator==(const Trace&) const = default;
};

/// Sets the counts of a trace with choices. Throws UserError that begins with `source` for sizes
/// out of range (experts up to 65535), for an expert that does not exist or that a token chose
/// twice, and for counts alone that cannot be sums of k different choices per token.
void finish_trace(Trace& trace, const std::string& source);

/// To call before memory is allocated for a trace of another tool's files. Throws UserError that
/// begins with `source` for sizes out of range, and when the trace would have far more counts and
/// choices (for every step, layer and rank) than the `known` numbers in the file.
void check_room(const Trace& trace, int64_t known, const std::string& source);

std::string trace_bytes(const Trace& trace);
/// Reads the project's own format. Throws UserError naming source and fault: another format or
/// version, a file shorter or longer than its header states, a record out of order, counts that are
/// not those of the choices, a wrong checksum, blocks that do not ascend, and the faults of
/// finish_trace.
Trace read_trace(std::string_view bytes, const std::string& source);

/// Returns a routing model that replays the trace. For another number of ranks, all tokens are
/// distributed again in order; ranks * tokens must be the trace's. If the trace has only counts,
/// tokens get choices with these counts in a random order by step, layer and rank (at most 2^27
/// choices per layer). A step after the last is refused or, with `cycle`, starts again at the
/// first. The model throws UserError naming the trace, the request and what the trace has.
RoutingModel routing_of(std::shared_ptr<const Trace> trace, const std::string& name, bool cycle);

}  // namespace moe
