// How much longer compute takes while transfers run beside it on a GPU, by the blocks that a
// transfer has there: measured (exec/device_overlap.h), and applied by ProfileCost. Not here: what
// transfers take from a CPU's core (in_step.h).
#pragma once

#include <map>
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/graph/graph.h"

namespace moe {

/// Whether the op runs on the matrix units; all other compute counts as bound by memory.
bool is_gemm(const Graph& graph, OpId op);

struct OverlapTable {
  /// What it rests on, for results: "measured: linear b1.qkv, layernorm b1.ln1".
  std::string source;
  std::map<int32_t, OverlapSlowdown> by_blocks;

  /// Between two rows on the straight line between them, beyond the ends as at the end; 1 without
  /// rows.
  OverlapSlowdown at(int32_t blocks) const;
  /// "measured: ...; 1 block: GEMMs x1.02, others x1.05; 2 blocks: ..."
  std::string describe() const;
};

/// One op of each class in a graph: the GEMM with the most flops, and of the others that have a
/// kernel and do not run on the host the one with the most bytes; invalid where there is none.
struct OverlapOps {
  OpId gemm, memory;
};
OverlapOps overlap_ops(const Graph& graph);

}  // namespace moe
