// Results of an inference run: how often its predictions are right, and per batch and MoE layer
// whether experts were placed again and how many rows each rank's experts computed. Times of a
// batch are in served_batch.h.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/exec/executor.h"

namespace moe {

/// Returns, for each batch, the fraction of RunResult::predictions that equal the data's targets.
/// `predictions` begin with batch `first_step` of the data.
std::vector<double> accuracy(const std::vector<std::vector<int32_t>>& predictions, int64_t ranks,
                             int64_t tokens_per_rank, const DataSource& data, int64_t first_step);

/// Returns the FNV-1a 64 hash of all predictions, in the order of batches and ranks.
uint64_t digest_of(const std::vector<std::vector<int32_t>>& predictions);

/// Returns, for each rank, the rows that it computes if each expert is on its owner only, in every
/// group of ranks that hold all experts. Requires: the size of the group divides the number of
/// experts or the reverse.
std::vector<int64_t> rows_of_owners(const MoeStats& layer, const Group& group, int64_t ranks,
                                    int64_t experts);

/// What the experts of one MoE layer did in one batch.
struct ServedLayer {
  bool fine_tunes = false, placed_again = false;  // OffloadRecord::fine_tunes, OffloadRecord::again
  std::vector<int64_t> rows;                      // per rank: rows that its experts computed
};
/// Returns the MoE layers of all batches as [batch][layer]. A layer that Lina's inference did not
/// place (it has no OffloadRecord) has the rows of rows_of_owners().
std::vector<std::vector<ServedLayer>> served_layers(const RunResult& result, const Group& group,
                                                    int64_t ranks, int64_t experts);

}  // namespace moe
