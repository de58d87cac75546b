// An exchange in rounds between blocks of a group.
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "tests/network/one_for_all.h"

namespace moe {
namespace {

using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;

/// A group that fits, and a round of it.
std::pair<Group, Round> random_round(int64_t devices, Rng& rng) {
  std::vector<std::pair<Group, Round>> fits;
  for (int64_t size = 1; size <= devices; ++size) {
    for (int64_t stride = 1; size * stride <= devices; ++stride) {
      if (devices % (size * stride) != 0) continue;
      for (int64_t of = 1; of <= size; ++of) {
        if (size % of == 0) fits.push_back({{size, stride}, {rng.below(of), of}});
      }
    }
  }
  return fits[static_cast<size_t>(rng.below(static_cast<int64_t>(fits.size())))];
}

std::vector<double> matrix_of(const Group& group, const Round& round, double bytes, int64_t n) {
  std::vector<double> matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t from = group.place(i) / round.members(group);
      const int64_t to = group.place(j) / round.members(group);
      if (i == j || !group.same(i, j) || to != (from + round.number) % round.of) continue;
      matrix[static_cast<size_t>(i * n + j)] = bytes;
    }
  }
  return matrix;
}

NetworkOp op_of(const Group& group, const Round& round, double bytes) {
  NetworkOp op = all_to_all(bytes);
  std::get<AllToAll>(op.what).round = round;
  op.group = group;
  return op;
}

TEST_CASE("rounds between nodes: by hand") {
  Cluster cluster = eight_a_node(16, 4);  // NICs of 12.5e9 bytes/s, two devices each
  cluster.a2a_base_ns = 10'000;
  cluster.a2a_per_peer_ns = 1'000;
  // The own node: 7 peers at a port. The other node: 2 x 8 pairs at a NIC.
  CHECK(all_to_all_ns(cluster, 3e6, {}, {0, 2}) == 70'000 + 2'000 + 17'000);
  CHECK(all_to_all_ns(cluster, 3e6, {}, {1, 2}) == 3'840'000 + 5'000 + 18'000);
  // Blocks of one device: nobody, then one peer.
  CHECK(all_to_all_ns(cluster, 3e6, {}, {0, 16}) == 0);
  CHECK(all_to_all_ns(cluster, 3e6, {}, {8, 16}) == 480'000 + 5'000 + 11'000);
}

TEST_CASE("a round takes the time of its byte matrix, by formula and on the links") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    const auto [group, round] = random_round(n, rng);
    const double bytes = static_cast<double>(rng.below(1 << 24));
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    INFO("seed " << seed << ": " << cluster.nodes << " x " << cluster.devices_per_node << ", group "
                 << group.size << " by " << group.stride << ", round " << round.number << " of "
                 << round.of);
    const Nanoseconds closed = all_to_all_ns(cluster, bytes, group, round);
    CHECK(closed == all_to_all_ns(cluster, bytes, group, round.reversed()));
    CHECK(closed == all_to_all_v_ns(cluster, matrix_of(group, round, bytes, n), group, round));
    const NetworkRun run = run_collectives(cluster, {op_of(group, round, bytes)}, options);
    CHECK(std::abs(run.ops[0].end_ns - closed) <= 1);
  }
}

TEST_CASE("where rounds meet, one node stands for all: the same times as with every link") {
  int folded = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    const auto bytes = [&] { return static_cast<double>(1 + rng.below(1 << 22)); };
    std::vector<NetworkOp> ops;
    for (int i = 0; i < 2; ++i) {
      const auto [group, round] = random_round(n, rng);
      ops.push_back(op_of(group, round, bytes()));
    }
    ops.push_back(test::all_reduce(bytes()));
    INFO("seed " << seed);
    folded += test::check_one_stands_for_all(cluster, ops, options) ? 1 : 0;
  }
  CHECK(folded > 100);
}

TEST_CASE("rounds that do not divide the group, or are not among them, are refused") {
  CHECK_THROWS_WITH(all_to_all_ns(eight_a_node(16), 1, {}, {0, 3}),
                    Catch::Contains("rounds = 3: must divide the 16 ranks"));
  CHECK_THROWS_WITH(run_collectives(eight_a_node(16), {op_of({}, {2, 2}, 1)}),
                    Catch::Contains("ops[0]: round = 2: 0 to 1 is allowed"));
}

}  // namespace
}  // namespace moe
