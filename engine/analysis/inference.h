// What results say of an executed inference: how good its predictions are, and what became of its
// experts, batch by batch.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// By batch: the share of RunResult::predictions that are the data's target. The batches are those
/// of the data from first_step on.
std::vector<double> accuracy(const std::vector<std::vector<int32_t>>& predictions, int64_t ranks,
                             int64_t tokens_per_rank, const DataSource& data, int64_t first_step);

/// FNV-1a 64 of all predictions in order of batches and ranks.
uint64_t digest_of(const std::vector<std::vector<int32_t>>& predictions);

/// By rank: rows of tokens, where each expert is on its owner. Requires: ranks that divide experts
/// or the other way round, without groups of ranks.
std::vector<int64_t> rows_of_owners(const MoeStats& layer, int64_t ranks, int64_t experts);

/// What an MoE layer did in a batch.
struct ServedLayer {
  bool fine_tunes = false, placed_again = false;  // OffloadRecord's
  std::vector<int64_t> rows;                      // by rank: of tokens that its experts computed
};
/// [batch][layer]
std::vector<std::vector<ServedLayer>> served_layers(const RunResult& result, int64_t ranks,
                                                    int64_t experts);

}  // namespace moe
