// Recorded routing: the experts that tokens chose, by step, MoE layer, rank and token, as a value,
// as bytes of our own format, and as a routing model that replays it. Numbers in files and in
// errors about them count from 0. Other tools' formats: trace_formats.h. Recording:
// exec/results/trace_record.h.
//
// The format, little-endian, nothing between the parts:
//   "MOETRACE"                          8 bytes
//   u32 version                         1
//   u32 bytes of a choice               1 (experts <= 255, 255: none), 2 (65535: none), 0: no
//                                       choices, counts alone
//   i64 steps, layers, ranks, tokens (a rank), experts, k
//   i32 blocks[layers]                  the model's block of each MoE layer, ascending from 0
//   steps * layers records, a step's layers together:
//     u32 number of the record          from 0: content that is mixed up shows
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
  std::vector<uint16_t> choices;  // [steps, layers, ranks, tokens, k]; empty: counts alone
  std::vector<uint32_t> counts;   // [steps, layers, ranks, experts]

  bool operator==(const Trace&) const = default;
};

/// Sets the counts of a trace with choices. Throws UserError that begins with `source` for sizes
/// out of range (experts up to 65535), an expert that is not there or that a token chose twice, and
/// counts alone that no k different choices per token make.
void finish_trace(Trace& trace, const std::string& source);

/// For readers of other formats, before they allocate: throws UserError that begins with `source`
/// for sizes out of range, and where counts and places of choices, which a trace has for every
/// step, layer and rank, would be far more than the `known` numbers that the file gives.
void check_room(const Trace& trace, int64_t known, const std::string& source);

std::string trace_bytes(const Trace& trace);
/// Throws UserError naming the source and what is wrong: another format or version, truncated or
/// longer than its header says, a record out of place, counts that are not those of the choices,
/// and as finish_trace; a checksum of other content; blocks that do not ascend.
Trace read_trace(std::string_view bytes, const std::string& source);

/// Replays the trace. Asked for another number of ranks, all tokens are dealt out again in order;
/// the product of ranks and tokens must be the trace's. Where counts alone are known, tokens are
/// given choices that make them, in a random order by step, layer and rank. A step behind the last:
/// refused, or with `cycle` from the first on again. Throws UserError naming the trace, what is
/// asked for and what it has; choices to be made of counts alone are 2^27 in a layer at most.
RoutingModel routing_of(std::shared_ptr<const Trace> trace, const std::string& name, bool cycle);

}  // namespace moe
