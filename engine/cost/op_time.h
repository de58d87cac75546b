// The time of one op of given sizes on a cluster, without a graph: measured where the device has
// tables (op_table.h), else by the rates of the cluster.
#pragma once

#include <string>
#include <vector>

#include "engine/cluster/cluster.h"

namespace moe {

struct OpTimeQuery {
  /// "gemm", "attention", "experts", "all_to_all", "all_reduce", "dispatch", "combine"
  std::string op;
  std::string dtype = "bf16";  // "bf16", "fp8"
  /// gemm: m, n, k. attention: batch, seq, heads, kv_heads, head_dim. experts: tokens of the whole
  /// expert-parallel group, hidden, inner, experts, k, ep. Collectives: ranks, bytes that a rank
  /// holds before the exchange (in an all-to-all with its part for itself). Dispatch and combine:
  /// nodes, sms, tokens of each rank, hidden, topk.
  std::vector<double> sizes;
  std::string load = "balanced";  // for experts: a load of the device's tables
};

struct OpTimeAnswer {
  double ns = 0, lo_ns = 0, hi_ns = 0;
  std::string source;
  bool extrapolated = false;
  bool measured = false;  // false: by the rates or links of the cluster; lo and hi are then ns
};

/// Throws UserError for an op, element type or load that neither the tables nor the rates have, and
/// for a time beyond the clock (kLongestNs).
/// Requires: as many sizes as the op has, each above 0.
OpTimeAnswer op_time(const Cluster& cluster, const OpTimeQuery& query);

}  // namespace moe
