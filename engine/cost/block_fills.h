// BlockFills: how the rows at a rank's experts spread over blocks, one for each expert slot and
// each source rank. An op that computes only rows in use runs one product per block, or one per
// slot where rows are packed (Tensor::stored_rows). Its time is therefore a sum over blocks, and
// the same rows in fewer blocks take less time.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

struct BlockFills {
  int64_t sources = 1;        // source ranks
  int64_t capacity = 1;       // rows for which a block has room
  std::vector<double> fills;  // rows in use divided by the capacity, [slots, sources]
};

/// Whether the op gets the number of rows in each block at the experts (Role::kRecvCounts).
bool counts_blocks(const Graph& graph, const Op& op);

/// The rows with which an op is timed.
struct TimedRows {
  int64_t slots;         // expert slots of a device
  int64_t filled;        // how many of these have rows: the first ones
  int64_t rows_of_slot;  // of all source ranks together; of a part of the batch, its share of them
};
/// Returns the rows with which the op is timed when its blocks are to have `fill` times their
/// capacity of rows, fill from 0 to 1. All slots have rows, unless rows are packed and there is no
/// room for so many: then as many slots as there is room for. Requires: counts_blocks().
TimedRows timed_rows(const Graph& graph, const Op& op, double fill);

/// Returns the fills at which the op is timed, ascending: 0, one row per block (of packed rows: per
/// slot), `even`, which is the expected fill, and 1/4, 1/2, 3/4 and 1; of packed rows, `even` times
/// 2, 4, 8 ... up to the room. Requires: counts_blocks().
std::vector<double> timed_fills(const Graph& graph, const Op& op, double even);

}  // namespace moe
