// What the tests of the network run on.
#pragma once

#include <cmath>
#include <vector>

#include "engine/base/rng.h"
#include "engine/network/contention.h"

namespace moe::test {

constexpr double kMiB = 1 << 20;

/// The topology of the cross-check against a flow simulator (ideal max-min sharing): 8 devices per
/// node, 50e9 bytes/s of NIC per node in all.
inline Cluster eight_a_node(int64_t devices, int64_t nics = 1) {
  Cluster cluster;
  cluster.nodes = devices / 8;
  cluster.devices_per_node = 8;
  cluster.intra = {300e9, 1000};
  cluster.nic = {50e9 / static_cast<double>(nics), 2500};
  cluster.nics_per_node = nics;
  return cluster;
}

/// Up to 4 nodes of up to 8 devices, with 1 to 16 NICs each.
inline Cluster random_cluster(Rng& rng) {
  Cluster cluster;
  cluster.nodes = 1 + rng.below(4);
  cluster.devices_per_node = int64_t{1} << rng.below(4);
  cluster.nics_per_node = int64_t{1} << rng.below(5);
  cluster.intra = {1e9 * (1 + 300 * rng.uniform()), rng.below(5000)};
  cluster.nic = {1e9 * (1 + 50 * rng.uniform()), rng.below(9000)};
  cluster.a2a_base_ns = rng.below(30'000);
  cluster.a2a_per_peer_ns = rng.below(3'000);
  return cluster;
}

/// Any group that fits.
inline Group random_group(int64_t devices, Rng& rng) {
  std::vector<Group> fits;
  for (int64_t size = 1; size <= devices; ++size) {
    for (int64_t stride = 1; size * stride <= devices; ++stride) {
      if (devices % (size * stride) == 0) fits.push_back({size, stride});
    }
  }
  return fits[static_cast<size_t>(rng.below(static_cast<int64_t>(fits.size())))];
}

/// One pair in four sends nothing.
inline std::vector<double> random_matrix(int64_t n, Rng& rng) {
  std::vector<double> bytes(static_cast<size_t>(n * n));
  for (double& b : bytes) b = rng.below(4) == 0 ? 0 : static_cast<double>(rng.below(1 << 20));
  return bytes;
}

/// Column j of the matrix is popular as (j+1)^-1/2, and the mean entry is `bytes`.
inline std::vector<double> skewed_matrix(int64_t n, double bytes) {
  double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += 1 / std::sqrt(static_cast<double>(j + 1));
  std::vector<double> matrix;
  for (int64_t k = 0; k < n * n; ++k) {
    const double popularity = 1 / std::sqrt(static_cast<double>(k % n + 1));
    matrix.push_back(std::floor(bytes * (static_cast<double>(n) * popularity / sum)));
  }
  return matrix;
}

inline NetworkOp all_to_all(double bytes_per_pair,
                            AllToAllAlgorithm algorithm = AllToAllAlgorithm::kDirect) {
  return {AllToAll{.bytes_per_pair = bytes_per_pair, .algorithm = algorithm}};
}

inline NetworkOp all_to_all_v(std::vector<double> bytes) {
  return {AllToAll{.bytes = std::move(bytes)}};
}

inline NetworkOp all_reduce(double bytes, int64_t rings = 1) {
  return {AllReduce{bytes, rings}};
}

/// A training iteration of `layers` layers. Forward: 600 us, an all-to-all, 500 us, an all-to-all;
/// backward the mirror image with twice the computation, then (reduce_bytes > 0) an all-reduce that
/// the next layer does not wait for. The last op of all starts when the last computation is done.
inline std::vector<NetworkOp> iteration(int64_t layers, const NetworkOp& exchange,
                                        double reduce_bytes) {
  std::vector<NetworkOp> ops;
  Nanoseconds compute_ns = 0;  // since the last all-to-all, which is `last`
  size_t last = 0;
  const auto then = [&](NetworkOp op) {
    if (!ops.empty()) op.after = {last};
    op.start_ns = compute_ns;
    ops.push_back(std::move(op));
  };
  const auto then_exchange = [&] {
    then(exchange);
    last = ops.size() - 1;
    compute_ns = 0;
  };
  for (int64_t k = 0; k < layers; ++k) {
    for (const Nanoseconds ns : {600'000, 500'000}) {
      compute_ns += ns;
      then_exchange();
    }
  }
  for (int64_t k = 0; k < layers; ++k) {
    for (const Nanoseconds ns : {1'000'000, 1'200'000}) {
      then_exchange();
      compute_ns += ns;
    }
    if (reduce_bytes > 0) then(all_reduce(reduce_bytes));
  }
  if (reduce_bytes == 0) then(all_reduce(0));
  return ops;
}

inline Nanoseconds last_end_ns(const NetworkRun& run) {
  Nanoseconds last = 0;
  for (const NetworkTimes& times : run.ops) last = std::max(last, times.end_ns);
  return last;
}

}  // namespace moe::test
