// How much longer compute takes on a GPU while transfers run, depending on the number of thread
// blocks of a transfer. It is measured in profile/device_overlap.h and applied by ProfileCost. The
// core time that transfers take from compute on a CPU is in in_step.h.
#pragma once

#include <map>
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/graph/graph.h"

namespace moe {

/// Whether the op runs on the matrix units (Work::gemm). All other compute counts as memory-bound.
bool is_gemm(const Graph& graph, OpId op);

struct OverlapTable {
  /// Where the numbers come from, for results: "measured: linear b1.qkv, layernorm b1.ln1".
  std::string source;
  std::map<int32_t, OverlapSlowdown> by_blocks;

  /// Returns the slowdown for transfers of `blocks` blocks: interpolated linearly between rows of
  /// by_blocks; beyond the first and the last row, that row; without rows, factors of 1.
  OverlapSlowdown at(int32_t blocks) const;
  /// Returns a text such as "measured: ...; 1 block: GEMMs x1.02, others x1.05; 2 blocks: ...".
  std::string describe() const;
};

/// The ops of a graph that are used for measuring: the GEMM with the most flops, and the other op
/// with the most bytes. Both have a kernel and run on the GPU, not on its CPU; an invalid id means
/// that there is no such op.
struct OverlapOps {
  OpId gemm, memory;
};
OverlapOps overlap_ops(const Graph& graph);

}  // namespace moe
