// Collectives in groups: all groups at once on one cluster.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "tests/network/one_for_all.h"

namespace moe {
namespace {

using test::all_reduce;
using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;
using test::kMiB;
using test::random_group;

std::vector<double> within(const Group& group, std::vector<double> bytes, int64_t devices) {
  for (int64_t i = 0; i < devices; ++i) {
    for (int64_t j = 0; j < devices; ++j) {
      if (!group.same(i, j)) bytes[static_cast<size_t>(i * devices + j)] = 0;
    }
  }
  return bytes;
}

NetworkOp in(const Group& group, NetworkOp op) {
  op.group = group;
  return op;
}

TEST_CASE("groups share the links of their nodes: by hand") {
  Cluster cluster = eight_a_node(16, 4);  // NICs of 12.5e9 bytes/s, two devices each
  cluster.a2a_base_ns = 10'000;
  cluster.a2a_per_peer_ns = 1'000;
  // The devices of a node: 7 peers at a port of 300e9.
  CHECK(all_to_all_ns(cluster, 3e6, {8, 1}) == 70'000 + 2'000 + 17'000);
  // The same place in both nodes: one peer, two devices at a NIC.
  CHECK(all_to_all_ns(cluster, 3e6, {2, 8}) == 480'000 + 5'000 + 11'000);
  // Neighbours: one peer at a port. Nobody: nothing.
  CHECK(all_to_all_ns(cluster, 3e6, {2, 1}) == 10'000 + 2'000 + 11'000);
  CHECK(all_to_all_ns(cluster, 3e6, {1, 1}) == 0);
  // Rings of 8 in a node; of two across nodes, each by the NIC of its device, two at a NIC.
  CHECK(all_reduce_ns(cluster, {2.4e6}, {8, 1}) == 14 * (1'000 + 2'000));
  CHECK(all_reduce_ns(cluster, {2.4e6}, {2, 8}) == 2 * (192'000 + 5'000));
  CHECK(all_reduce_ns(cluster, {2.4e6}, {1, 1}) == 0);
}

TEST_CASE("the two steps of a hierarchical all-to-all load the NICs as the plain one does") {
  const Cluster cluster = eight_a_node(64, 4);
  const double mine = 64 * kMiB;  // what a device hands over, its own part included
  const Nanoseconds plain = all_to_all_ns(cluster, mine / 64);
  CHECK(all_to_all_ns(cluster, mine / 8, {8, 8}) == plain);
  CHECK(all_to_all_ns(cluster, mine / 8, {8, 1}) < plain);
}

TEST_CASE("an all-to-all in groups takes the time of its byte matrix") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    const Group group = random_group(n, rng);
    const double bytes = static_cast<double>(rng.below(1 << 24));
    const std::vector<double> all(static_cast<size_t>(n * n), bytes);
    INFO("seed " << seed << ", group " << group.size << " by " << group.stride);
    CHECK(all_to_all_ns(cluster, bytes, group) ==
          all_to_all_v_ns(cluster, within(group, all, n), group));
  }
}

/// Every hop of every ring of every group, one by one.
Nanoseconds ring_by_ring(const Cluster& cluster, double bytes, int64_t rings, const Group& group) {
  const NodePorts ports = node_ports(cluster);
  const int64_t n = cluster.num_devices(), per_node = cluster.devices_per_node;
  std::vector<double> port(static_cast<size_t>(n)), out(port.size()), in(port.size());
  const double chunk = std::floor(bytes / static_cast<double>(group.size * rings));
  const auto nic = [&](int64_t device, int64_t ring) {
    std::vector<int64_t> nics;  // of the group's members in the device's node
    for (int64_t d = device / per_node * per_node; d < (device / per_node + 1) * per_node; ++d) {
      if (group.same(d, device)) nics.push_back(d / ports.devices_per_group);
    }
    nics.erase(std::unique(nics.begin(), nics.end()), nics.end());
    return static_cast<size_t>(nics[static_cast<size_t>(ring) % nics.size()]);
  };
  for (int64_t d = 0; d < n && group.size > 1; ++d) {
    const int64_t next = group.member(d, (group.place(d) + 1) % group.size);
    for (int64_t ring = 0; ring < rings; ++ring) {
      if (d / per_node == next / per_node) {
        port[static_cast<size_t>(d)] += chunk;
      } else {
        out[nic(d, ring)] += chunk;
        in[nic(next, ring)] += chunk;
      }
    }
  }
  const auto most = [](const std::vector<double>& load) {
    return *std::max_element(load.begin(), load.end());
  };
  const auto step = [](double load, double rate, Nanoseconds latency) {
    return load > 0 ? load / rate * 1e9 + 2 * static_cast<double>(latency) : 0;
  };
  const double slowest =
      std::max(step(most(port), cluster.intra.bytes_per_s, cluster.intra.latency_ns),
               step(std::max(most(out), most(in)), ports.bytes_per_s, cluster.nic.latency_ns));
  return std::llround(2.0 * static_cast<double>(group.size - 1) * slowest);
}

TEST_CASE("all-reduces in groups take the time of their rings, hop by hop") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const Group group = random_group(cluster.num_devices(), rng);
    const double bytes = static_cast<double>((1 << 16) + rng.below(1 << 24));
    INFO("seed " << seed << ", group " << group.size << " by " << group.stride);
    for (const int64_t rings : {1, 2, 3, 8}) {
      const Nanoseconds expected = ring_by_ring(cluster, bytes, rings, group);
      CHECK(std::abs(all_reduce_ns(cluster, {bytes, rings}, group) - expected) <= 1);
    }
  }
}

TEST_CASE("a ring per NIC: as many rings as NICs serve a group in a node") {
  const Cluster cluster = eight_a_node(64, 4);
  const auto same = [&](const Group& group, int64_t rings) {
    CHECK(all_reduce_ns(cluster, {100 * kMiB}, group) ==
          all_reduce_ns(cluster, {100 * kMiB, rings}, group));
  };
  same({64, 1}, 4);
  same({8, 8}, 1);   // one member per node
  same({16, 4}, 2);  // members 0 and 4: two NICs
  same({32, 2}, 4);
  same({8, 1}, 1);  // inside a node
}

TEST_CASE("collectives in groups that are alone take the time of their closed forms") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    const Group group = random_group(n, rng);
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    const auto alone = [&](const NetworkOp& op) {
      return run_collectives(cluster, {in(group, op)}, options).ops[0].end_ns;
    };
    INFO("seed " << seed << ": " << cluster.nodes << " x " << cluster.devices_per_node << ", "
                 << cluster.nics_per_node << " NICs, group " << group.size << " by "
                 << group.stride);
    const double bytes = static_cast<double>(rng.below(1 << 24));
    CHECK(std::abs(alone(all_to_all(bytes)) - all_to_all_ns(cluster, bytes, group)) <= 1);
    const std::vector<double> matrix = within(group, test::random_matrix(n, rng), n);
    CHECK(std::abs(alone(all_to_all_v(matrix)) - all_to_all_v_ns(cluster, matrix, group)) <= 1);
    for (const int64_t rings : {0, 1, 3}) {
      CHECK(std::abs(alone(all_reduce(bytes, rings)) -
                     all_reduce_ns(cluster, {bytes, rings}, group)) <= 1);
    }
  }
}

TEST_CASE("the exchange of one group takes the time of a matrix with its bytes alone") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices(), rank = rng.below(n);
    const Group group = random_group(n, rng);
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    const auto run = [&](const NetworkOp& op) {
      return run_collectives(cluster, {in(group, op)}, options).ops[0];
    };
    const bool even = seed % 3 == 0;
    std::vector<double> matrix = even ? std::vector<double>(static_cast<size_t>(n * n), 12'345)
                                      : test::random_matrix(n, rng);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        if (!group.same(i, rank) || !group.same(j, rank))
          matrix[static_cast<size_t>(i * n + j)] = 0;
      }
    }
    const NetworkOp all = all_to_all_v(matrix);
    AllToAll own{.bytes = bytes_of_group(matrix, group, rank, n), .rank = rank};
    INFO("seed " << seed << ", group " << group.size << " by " << group.stride);
    CHECK(alone_ns(cluster, in(group, {own})) == alone_ns(cluster, in(group, all)));
    CHECK(run({own}).rank_end_ns == run(all).rank_end_ns);
    if (!even) continue;
    own = {.bytes_per_pair = 12'345, .rank = rank};
    CHECK(alone_ns(cluster, in(group, {own})) == alone_ns(cluster, in(group, all)));
    CHECK(std::abs(run({own}).end_ns - run(all).end_ns) <= 1);
  }
}

TEST_CASE("where groups meet, one node stands for all: the same times as with every link") {
  int folded = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    const auto bytes = [&] { return static_cast<double>(1 + rng.below(1 << 22)); };
    std::vector<NetworkOp> ops{
        in(random_group(n, rng), all_to_all(bytes())),
        in(random_group(n, rng), all_reduce(bytes(), rng.below(3))),
        in(random_group(n, rng), all_to_all(bytes(), AllToAllAlgorithm::kPairwise))};
    ops[1].start_ns = rng.below(50'000);
    INFO("seed " << seed);
    folded += test::check_one_stands_for_all(cluster, ops, options) ? 1 : 0;
  }
  CHECK(folded > 100);
}

TEST_CASE("a group that does not divide the devices is refused with the op's number") {
  CHECK_THROWS_WITH(
      run_collectives(eight_a_node(16), {all_to_all(1), in({3, 1}, all_reduce(1))}),
      Catch::Contains("ops[1]: group = 3, stride = 1") && Catch::Contains("divide the 16 ranks"));
  CHECK_THROWS_AS(all_to_all_ns(eight_a_node(16), 1, {16, 2}), UserError);
  CHECK_THROWS_AS(all_reduce_ns(eight_a_node(16), {1}, {3, 1}), UserError);
}

}  // namespace
}  // namespace moe
