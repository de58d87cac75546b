// Where all nodes do the same, one node with its links stands for all: that this changes no time.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/network/clusters.h"

namespace moe::test {

/// One node that stands for all, where that is taken, has the times of every node with links of its
/// own, rank by rank. Whether it was taken.
inline bool check_one_stands_for_all(const Cluster& cluster, std::vector<NetworkOp> ops,
                                     const NetworkOptions& options) {
  const NetworkRun one = run_collectives(cluster, ops, options);
  // Ranks that may start apart have links of their own.
  const auto n = static_cast<size_t>(cluster.num_devices());
  for (NetworkOp& op : ops) op.rank_start_ns.assign(n, 0);
  const NetworkRun every = run_collectives(cluster, ops, options);
  CHECK_FALSE(every.nodes_alike);
  for (size_t i = 0; i < ops.size(); ++i) {
    INFO("op " << i);
    CHECK(std::abs(one.ops[i].end_ns - every.ops[i].end_ns) <= 2);
    for (size_t r = 0; r < n; ++r)
      REQUIRE(std::abs(one.ops[i].rank_end_ns[r] - every.ops[i].rank_end_ns[r]) <= 2);
  }
  return one.nodes_alike;
}

}  // namespace moe::test
