#include "engine/exec/results/trace_record.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

void set_sizes(Trace& trace, const std::vector<std::vector<const GateRecord*>>& records) {
  const std::vector<const GateRecord*>& one = records.at(0);
  trace.ranks = static_cast<int64_t>(records.size());
  trace.experts = one.at(0)->maps.experts;
  trace.k = one.at(0)->maps.columns;
  for (const GateRecord* record : one) {
    if (record->layer == one[0]->layer && record->micro == 0) trace.tokens += record->maps.tokens;
    const auto block = static_cast<int32_t>(record->layer);
    if (trace.blocks.empty() || trace.blocks.back() != block) trace.blocks.push_back(block);
  }
  trace.layers = static_cast<int64_t>(trace.blocks.size());
  if (trace.experts > kNoExpert) {
    throw user_error("record: a routing trace can have at most {} experts, but the model has {}",
                     kNoExpert, trace.experts);
  }
}

}  // namespace

void record_step(Trace& trace, std::vector<std::vector<const GateRecord*>> records) {
  int64_t micros = 1;
  for (auto& rank : records) {
    if (rank.empty()) return;  // no MoE layer
    std::sort(rank.begin(), rank.end(), by_layer);
    micros = rank.back()->micro + 1;
  }
  if (trace.steps == 0) set_sizes(trace, records);
  trace.steps += micros;
  size_t next = trace.choices.size();
  trace.choices.resize(
      next + static_cast<size_t>(micros * trace.layers * trace.ranks * trace.tokens * trace.k));
  for (int64_t micro = 0; micro < micros; ++micro) {
    for (const int32_t block : trace.blocks) {
      for (const auto& rank : records) {
        for (const GateRecord* record : rank) {
          if (record->layer != block || record->micro != micro) continue;
          // The cast turns -1 into kNoExpert.
          for (const int32_t e : record->expert) trace.choices[next++] = static_cast<uint16_t>(e);
        }
      }
    }
  }
  MOE_CHECK(next == trace.choices.size(),
            "{} choices were recorded in a routing trace, but must be exactly {}", next,
            trace.choices.size());
}

}  // namespace moe
