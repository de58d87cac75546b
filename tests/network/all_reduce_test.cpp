// The algorithms of an all-reduce: their times alone, which of them is chosen, and how they share
// links.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/network/closed_form.h"
#include "tests/network/clusters.h"

namespace moe {
namespace {

using test::eight_a_node;
using test::kMiB;
using Algorithm = AllReduceAlgorithm;

constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kTree, Algorithm::kTwoLevel,
                              Algorithm::kInSwitch};

Nanoseconds by(Algorithm algorithm, const Cluster& cluster, double bytes, const Group& group = {}) {
  return all_reduce_ns(cluster, {.bytes = bytes, .algorithm = algorithm}, group);
}

Cluster with_switch(Cluster cluster) {
  cluster.in_switch = true;
  return cluster;
}

/// Latency, bytes, and the pieces that follow each other.
Nanoseconds pieces(double latency_ns, double bytes_ns) {
  return std::llround(latency_ns + bytes_ns + 2 * std::sqrt(latency_ns * bytes_ns));
}

TEST_CASE("all-reduces by every algorithm: by hand") {
  // 8 nodes of 8 devices, one NIC of 50e9 bytes/s; hops of 2 us inside a node and 5 us between.
  const Cluster cluster = with_switch(eight_a_node(64));
  // Up and down: a chain of 7 hops in the node, 3 between nodes. A node's NIC sends 2 M at 0.9 of
  // its rate.
  CHECK(by(Algorithm::kTree, cluster, 2.25e6) == pieces(2 * (7 * 2'000 + 3 * 5'000), 100'000));
  // 7 steps of M/8 in the node, 14 steps in which 8 devices send M/64 over the NIC, 7 steps.
  CHECK(by(Algorithm::kTwoLevel, cluster, 2.4e6) == 2 * 7 * (1'000 + 2'000) + 14 * (6'000 + 5'000));
  // Into the switch and out of it, and three hops up and down between.
  CHECK(by(Algorithm::kInSwitch, cluster, 2.25e6) == pieces(2 * 2'000 + 6 * 5'000, 100'000));
  Cluster node = with_switch(eight_a_node(8));
  CHECK(by(Algorithm::kInSwitch, node, 2.4e6) == pieces(2 * 2'000, 9'000));
  // Two nodes: each sends M once by the trees. Three: the fullest sends 1.5 M.
  CHECK(by(Algorithm::kTree, eight_a_node(16), 2.25e6) == pieces(2 * (14'000 + 5'000), 50'000));
  CHECK(by(Algorithm::kTree, eight_a_node(24), 2.25e6) == pieces(2 * (14'000 + 10'000), 75'000));
  // The same place in every node: no chain. All 8 groups at once share the NIC.
  CHECK(by(Algorithm::kTree, cluster, 2.25e6, {8, 8}) == pieces(30'000, 100'000) + 7 * 100'000);
  CHECK(by(Algorithm::kTree, cluster, 0) == 0);
  node.all_reduce_base_ns = 12'000;
  CHECK(by(Algorithm::kInSwitch, node, 2.4e6) == pieces(12'000 + 2 * 2'000, 9'000));
  CHECK(by(Algorithm::kRing, node, 2.4e6) == 12'000 + 14 * 3'000);
  CHECK(by(Algorithm::kRing, node, 0) == 0);
}

/// The neighbours of every node in the binary tree in which node 0 is the root with one child and
/// the leaves are the odd nodes.
std::vector<std::vector<int64_t>> tree_of(int64_t nodes) {
  std::vector<std::vector<int64_t>> near(static_cast<size_t>(nodes));
  for (int64_t node = 1; node < nodes; ++node) {
    const int64_t bit = node & -node;
    int64_t up = (node ^ bit) | (bit << 1);
    if (up >= nodes) up = node ^ bit;
    near[static_cast<size_t>(node)].push_back(up);
    near[static_cast<size_t>(up)].push_back(node);
  }
  return near;
}

int64_t depth_below(const std::vector<std::vector<int64_t>>& near, int64_t node, int64_t from) {
  int64_t depth = 0;
  for (const int64_t next : near[static_cast<size_t>(node)]) {
    if (next != from) depth = std::max(depth, 1 + depth_below(near, next, node));
  }
  return depth;
}

TEST_CASE("what the double tree sends and how deep it is, counted node by node") {
  for (int64_t nodes = 2; nodes <= 130; ++nodes) {
    const auto near = tree_of(nodes);
    size_t most = 0;
    for (int64_t node = 0; node < nodes; ++node) {
      // The second tree is the first one mirrored, or shifted by one for an odd number of nodes.
      const int64_t other = nodes % 2 == 0 ? nodes - 1 - node : (node + nodes - 1) % nodes;
      most = std::max(
          most, near[static_cast<size_t>(node)].size() + near[static_cast<size_t>(other)].size());
    }
    Cluster cluster;
    cluster.nodes = nodes;
    cluster.nic = {1e9, 0};
    INFO(nodes << " nodes");
    CHECK(std::abs(by(Algorithm::kTree, cluster, 1.8e6) -
                   static_cast<Nanoseconds>(most) * 1'000'000) <= 1);
    cluster.nic = {1e18, 500};
    const Nanoseconds latency = 2 * depth_below(near, 0, -1) * 1'000;
    CHECK(std::abs(by(Algorithm::kTree, cluster, 1) - latency) <= 2'000);
  }
}

TEST_CASE("a reduce-scatter and an all-gather together take the time of an all-reduce") {
  int two_level = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    Cluster cluster = with_switch(test::random_cluster(rng));
    cluster.all_reduce_base_ns = rng.below(20'000);
    const Group group = test::random_group(cluster.num_devices(), rng);
    for (const Algorithm algorithm : kAll) {
      AllReduce op = {.bytes = static_cast<double>(rng.below(1 << 24)), .algorithm = algorithm};
      Nanoseconds halves = 0;
      for (const ReducePart part : {ReducePart::kReduceScatter, ReducePart::kAllGather}) {
        op.part = part;
        const Nanoseconds closed = all_reduce_ns(cluster, op, group);
        CHECK(std::abs(run_collectives(cluster, {{op, group}}).ops[0].end_ns - closed) <= 1);
        halves += closed;
      }
      // Of the tree and the switch there are no halves; each half has a start-up.
      const bool ring = algorithm != Algorithm::kTwoLevel;
      two_level += algorithm_of(cluster, op, group) == Algorithm::kTwoLevel;
      op.part = ReducePart::kWhole;
      op.algorithm = ring ? Algorithm::kRing : algorithm;
      const Nanoseconds whole = all_reduce_ns(cluster, op, group);
      CHECK(std::abs(halves - whole - (whole > 0 ? cluster.all_reduce_base_ns : 0)) <= 1);
    }
  }
  CHECK(two_level > 20);
}

TEST_CASE("halves of an all-reduce: by hand") {
  const Cluster cluster = eight_a_node(64);
  AllReduce op = {.bytes = 2.4e6, .part = ReducePart::kReduceScatter};
  // 63 steps in which a NIC sends M/64.
  CHECK(all_reduce_ns(cluster, op) == 63 * (750 + 5'000));
  op.algorithm = Algorithm::kTwoLevel;
  // 7 steps of M/8 in the node, 7 steps in which 8 devices send M/64 over the NIC.
  CHECK(all_reduce_ns(cluster, op) == 7 * (1'000 + 2'000) + 7 * (6'000 + 5'000));
  op.algorithm = Algorithm::kQuickest;
  CHECK(algorithm_of(cluster, op, {}) == Algorithm::kTwoLevel);
}

TEST_CASE("an all-reduce that is alone takes the time of its closed form, by every algorithm") {
  std::map<Algorithm, int> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    Cluster cluster = with_switch(test::random_cluster(rng));
    cluster.all_reduce_base_ns = rng.below(20'000);
    const Group group = test::random_group(cluster.num_devices(), rng);
    AllReduce op = {.bytes = static_cast<double>(rng.below(1 << 24)), .rings = rng.below(3)};
    if (seed % 3 == 0) op.rank = rng.below(cluster.num_devices());
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    for (const Algorithm algorithm : kAll) {
      op.algorithm = algorithm;
      const Nanoseconds closed = all_reduce_ns(cluster, op, group);
      const NetworkRun run = run_collectives(cluster, {{op, group}}, options);
      INFO("seed " << seed << " by " << name_of(algorithm) << ": " << cluster.nodes << " x "
                   << cluster.devices_per_node << ", " << cluster.nics_per_node << " NICs, group "
                   << group.size << " by " << group.stride << ", rank " << op.rank);
      CHECK(std::abs(run.ops[0].end_ns - closed) <= 1);
      ++seen[algorithm_of(cluster, op, group)];
    }
  }
  for (const Algorithm algorithm : kAll) CHECK(seen[algorithm] > 20);
}

TEST_CASE("the quickest algorithm is the one with the shortest time, and allowed") {
  std::map<Algorithm, int> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    Cluster cluster = test::random_cluster(rng);
    cluster.in_switch = rng.below(2) == 0;
    const Group group = test::random_group(cluster.num_devices(), rng);
    AllReduce op = {.bytes = std::exp2(4 + 24 * rng.uniform())};
    op.algorithm = Algorithm::kQuickest;
    Nanoseconds least = by(Algorithm::kRing, cluster, op.bytes, group);
    for (const Algorithm algorithm : kAll) {
      least = std::min(least, by(algorithm, cluster, op.bytes, group));
    }
    CHECK(all_reduce_ns(cluster, op, group) == least);
    const Algorithm taken = algorithm_of(cluster, op, group);
    CHECK((taken != Algorithm::kInSwitch || cluster.in_switch));
    ++seen[taken];
  }
  for (const Algorithm algorithm : kAll) CHECK(seen[algorithm] > 0);
}

TEST_CASE("a small all-reduce of many nodes takes the tree, a large one over fast NICs the ring") {
  const Cluster many = eight_a_node(1024);
  CHECK(algorithm_of(many, {.bytes = 1e5, .algorithm = Algorithm::kQuickest}, {}) ==
        Algorithm::kTree);
  // In the time of the ring's 254 steps of 5 us.
  const Cluster nodes16 = eight_a_node(128);
  CHECK(by(Algorithm::kRing, nodes16, 2e4) > 254 * 5'000);
  CHECK(by(Algorithm::kQuickest, nodes16, 2e4) < 254 * 5'000 / 10);
  Cluster fast = eight_a_node(128, 8);  // NICs that together are as fast as a port
  fast.nic.bytes_per_s = 40e9;
  CHECK(algorithm_of(fast, {.bytes = 1e10, .algorithm = Algorithm::kQuickest}, {}) ==
        Algorithm::kRing);
}

TEST_CASE("groups that reduce one by one together take the time of all groups at once") {
  const Cluster cluster = eight_a_node(32, 4);
  const Group group{4, 8};  // the same place in every node; two devices share a NIC
  for (const Algorithm algorithm : kAll) {
    std::vector<NetworkOp> ops;
    for (int64_t rank = 0; rank < 8; ++rank) {
      ops.push_back({AllReduce{.bytes = kMiB, .algorithm = algorithm, .rank = rank}, group});
    }
    const NetworkRun run =
        run_collectives(cluster, ops, {.share = Share::kPerCollective, .efficiency = 1});
    const Nanoseconds together = by(algorithm, cluster, kMiB, group);
    CHECK(std::abs(test::last_end_ns(run) - together) <= 1);
    CHECK(all_reduce_ns(cluster, {.bytes = kMiB, .algorithm = algorithm, .rank = 3}, group) <
          together);
  }
}

TEST_CASE("an all-reduce by tree shares its links with an all-to-all") {
  const Cluster cluster = eight_a_node(32);
  const NetworkOp tree = {AllReduce{.bytes = 50 * kMiB, .algorithm = Algorithm::kTree}};
  const NetworkOp exchange = test::all_to_all(kMiB);
  const auto alone = [&](const NetworkOp& op) {
    return run_collectives(cluster, {op}).ops[0].end_ns;
  };
  const NetworkRun both =
      run_collectives(cluster, {tree, exchange}, {.share = Share::kPerCollective});
  CHECK(both.ops[0].end_ns > alone(tree) + alone(exchange) / 2);
  CHECK(test::last_end_ns(both) <= alone(tree) + alone(exchange));
}

TEST_CASE("an algorithm that the cluster cannot use is refused") {
  Cluster cluster = eight_a_node(16);
  cluster.all_reduce = Algorithm::kInSwitch;
  CHECK_THROWS_WITH(check(cluster), Catch::Contains("in_switch = true"));
  check(with_switch(cluster));
  for (const Algorithm algorithm : {Algorithm::kTree, Algorithm::kTwoLevel}) {
    cluster.all_reduce = algorithm;
    cluster.nodes = 2;
    check(cluster);
    cluster.nodes = 1;
    CHECK_THROWS_WITH(check(cluster), Catch::Contains("needs two nodes or more"));
  }
}

}  // namespace
}  // namespace moe
