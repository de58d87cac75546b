#include "engine/network/contention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "tests/network/clusters.h"

namespace moe {
namespace {

using test::all_reduce;
using test::all_to_all;
using test::all_to_all_v;
using test::eight_a_node;
using test::kMiB;

std::vector<Nanoseconds> ends(const NetworkRun& run) {
  std::vector<Nanoseconds> all;
  for (const NetworkTimes& times : run.ops) all.push_back(times.end_ns);
  return all;
}

NetworkOp pairwise(double bytes) {
  return all_to_all(bytes, AllToAllAlgorithm::kPairwise);
}

using Times = std::vector<Nanoseconds>;

// The numbers of the next cases come from a flow simulator (ideal max-min sharing of the same
// links).

TEST_CASE("collectives alone end as in the flow simulator") {
  CHECK(ends(run_collectives(eight_a_node(64), {all_to_all(kMiB)})) == Times{9'400'241});
  CHECK(ends(run_collectives(eight_a_node(128), {all_to_all(kMiB)})) == Times{20'137'659});
  CHECK(ends(run_collectives(eight_a_node(256), {all_to_all(kMiB)})) == Times{41'612'496});
  CHECK(ends(run_collectives(eight_a_node(64), {pairwise(kMiB)})) == Times{9'710'241});
  CHECK(ends(run_collectives(eight_a_node(64), {all_reduce(100 * kMiB)})) == Times{4'758'768});
  CHECK(ends(run_collectives(eight_a_node(128), {all_reduce(100 * kMiB)})) == Times{5'431'536});
  CHECK(ends(run_collectives(eight_a_node(256), {all_reduce(100 * kMiB)})) == Times{6'727'920});
  const NetworkOp skewed = all_to_all_v(test::skewed_matrix(64, kMiB));
  CHECK(ends(run_collectives(eight_a_node(64, 1), {skewed})) == Times{22'506'308});
  CHECK(ends(run_collectives(eight_a_node(64, 4), {skewed})) == Times{35'153'297});
}

TEST_CASE("an all-to-all and an all-reduce that meet end as in the flow simulator") {
  CHECK(ends(run_collectives(eight_a_node(64), {all_to_all(kMiB), all_reduce(100 * kMiB)})) ==
        Times{9'421'212, 14'154'009});
  CHECK(ends(run_collectives(eight_a_node(64), {pairwise(kMiB), all_reduce(100 * kMiB)})) ==
        Times{10'999'418, 13'978'665});
}

TEST_CASE("by flows, how two collectives are cut decides which of them wins") {
  const Times many_rings =
      ends(run_collectives(eight_a_node(64), {pairwise(kMiB), all_reduce(100 * kMiB, 8)}));
  CHECK(to_ms(many_rings[0]) == Approx(13.7).margin(0.05));
  CHECK(to_ms(many_rings[1]) == Approx(8.4).margin(0.05));
}

TEST_CASE("an iteration of 24 layers ends as in the flow simulator") {
  const auto end_ns = [](double reduce_bytes) {
    return test::last_end_ns(
        run_collectives(eight_a_node(64), test::iteration(24, all_to_all(kMiB / 4), reduce_bytes)));
  };
  CHECK(end_ns(0) ==
        Approx(305'165'783).margin(0.1));  // every all-to-all is rounded to the nanosecond
  CHECK(end_ns(25 * kMiB) == Approx(307'068'891).margin(0.1));
}

// A collective's events are sums and quotients of doubles, the closed form is one of each; both are
// rounded to a nanosecond, the closed form before its start-up is added.
constexpr Nanoseconds kRounding = 1;

TEST_CASE("a collective alone takes the time of its closed form under every rule") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const int64_t n = cluster.num_devices();
    NetworkOptions options;
    options.share = static_cast<Share>(seed % 4);
    options.efficiency = 0.5;
    const auto alone = [&](NetworkOp op) {
      op.start_ns = 12'345;
      return run_collectives(cluster, {op}, options).ops[0].end_ns - op.start_ns;
    };
    INFO("seed " << seed << ": " << cluster.nodes << " x " << cluster.devices_per_node << ", "
                 << cluster.nics_per_node << " NICs");
    const double bytes = static_cast<double>(rng.below(1 << 24));
    CHECK(std::abs(alone(all_to_all(bytes)) - all_to_all_ns(cluster, bytes)) <= kRounding);
    const std::vector<double> matrix = test::random_matrix(n, rng);
    CHECK(std::abs(alone(all_to_all_v(matrix)) - all_to_all_v_ns(cluster, matrix)) <= kRounding);
    for (const int64_t rings : {0, 1, 2, 3, 8}) {
      CHECK(std::abs(alone(all_reduce(bytes, rings)) - all_reduce_ns(cluster, {bytes, rings})) <=
            kRounding);
    }
  }
}

TEST_CASE("collectives one after the other do not meet") {
  Rng rng(5);
  const Cluster cluster = eight_a_node(16, 4);
  std::vector<NetworkOp> ops{all_to_all_v(test::random_matrix(16, rng)), all_reduce(kMiB),
                             all_to_all(kMiB)};
  ops[1].after = {0};
  ops[1].start_ns = 700;
  ops[2].after = {0, 1};
  const NetworkRun run = run_collectives(cluster, ops);
  const Nanoseconds first = all_to_all_v_ns(cluster, std::get<AllToAll>(ops[0].what).bytes);
  CHECK(std::abs(run.ops[0].end_ns - first) <= 1);
  CHECK(std::abs(run.ops[1].begin_ns - first - 700) <= 1);
  CHECK(std::abs(run.ops[1].end_ns - first - 700 - all_reduce_ns(cluster, {kMiB, 1})) <= 2);
  CHECK(std::abs(run.ops[2].end_ns - run.ops[1].end_ns - all_to_all_ns(cluster, kMiB)) <= 2);
}

/// Two to four collectives that start within the time of one.
std::vector<NetworkOp> random_ops(const Cluster& cluster, Rng& rng) {
  std::vector<NetworkOp> ops;
  const int64_t count = 2 + rng.below(3);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kind = rng.below(4);
    if (kind == 0) ops.push_back(all_reduce(static_cast<double>(rng.below(1 << 24)), rng.below(4)));
    if (kind == 1) ops.push_back(all_to_all(static_cast<double>(rng.below(1 << 18))));
    if (kind == 2) ops.push_back(pairwise(static_cast<double>(rng.below(1 << 18))));
    if (kind == 3) {
      ops.push_back(all_to_all_v(test::random_matrix(cluster.num_devices(), rng)));
    }
    ops.back().start_ns = rng.below(300'000);
    ops.back().priority = rng.below(3);
  }
  return ops;
}

/// Bytes that an op puts on ports and NICs, each way.
double bytes_of(const Cluster& cluster, const NetworkOp& op) {
  const int64_t n = cluster.num_devices();
  double all = 0;
  if (const auto* a2a = std::get_if<AllToAll>(&op.what)) {
    for (int64_t k = 0; k < n * n; ++k) {
      if (k / n == k % n) continue;
      all += a2a->bytes.empty() ? a2a->bytes_per_pair : a2a->bytes[static_cast<size_t>(k)];
    }
    return all;
  }
  const AllReduce& reduce = std::get<AllReduce>(op.what);
  const int64_t nics = std::min(cluster.nics_per_node, cluster.devices_per_node);
  const int64_t rings = reduce.rings > 0 ? reduce.rings : cluster.nodes > 1 ? nics : 1;
  const double cuts = static_cast<double>(n * rings);
  return static_cast<double>(2 * (n - 1) * n * rings) * std::floor(reduce.bytes / cuts);
}

TEST_CASE("every byte crosses a link out and a link in, and no link is above its rate") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    if (cluster.num_devices() == 1) continue;
    const std::vector<NetworkOp> ops = random_ops(cluster, rng);
    const Share share = static_cast<Share>(seed % 4);
    const NetworkRun run =
        run_collectives(cluster, ops, {.share = share, .efficiency = 1, .keep_use = true});
    double expected = 0, out = 0, in = 0;
    for (const NetworkOp& op : ops) expected += bytes_of(cluster, op);
    const NodePorts ports = node_ports(cluster);
    std::vector<double> idle_from(run.links.size());
    for (const LinkUse& use : run.use) {
      const LinkKind kind = run.links[use.link].kind;
      const bool port = kind == LinkKind::kPortOut || kind == LinkKind::kPortIn;
      REQUIRE(use.bytes_per_s <=
              (port ? cluster.intra.bytes_per_s : ports.bytes_per_s) * (1 + 1e-9));
      REQUIRE(use.begin_ns >= idle_from[use.link]);
      idle_from[use.link] = use.end_ns;
      const double bytes = use.bytes_per_s * (use.end_ns - use.begin_ns) / kNsPerSecond;
      (kind == LinkKind::kPortOut || kind == LinkKind::kNicOut ? out : in) += bytes;
    }
    const double seen =
        run.nodes_alike ? cluster.nodes == 1 ? cluster.num_devices() : cluster.nodes : 1;
    INFO("seed " << seed);
    CHECK(out * seen == Approx(expected).epsilon(1e-6));
    CHECK(in * seen == Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("one node stands for all exactly where all do the same") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const double bytes = static_cast<double>(1 + rng.below(1 << 18));
    std::vector<NetworkOp> ops{all_to_all(bytes), all_reduce(bytes * 30, 1 + rng.below(8)),
                               pairwise(bytes / 2)};
    for (NetworkOp& op : ops) op.start_ns = rng.below(100'000);
    const NetworkOptions options{.share = static_cast<Share>(seed % 4)};
    const NetworkRun alike = run_collectives(cluster, ops, options);
    REQUIRE(alike.nodes_alike);
    for (NetworkOp& op : ops) {
      op.rank_start_ns.assign(static_cast<size_t>(cluster.num_devices()), 0);
    }
    const NetworkRun every = run_collectives(cluster, ops, options);
    REQUIRE(!every.nodes_alike);
    for (size_t i = 0; i < ops.size(); ++i) {
      INFO("seed " << seed << ", op " << i);
      CHECK(std::abs(alike.ops[i].end_ns - every.ops[i].end_ns) <= 2);
      for (size_t r = 0; r < every.ops[i].rank_end_ns.size(); ++r) {
        CHECK(std::abs(alike.ops[i].rank_end_ns[r] - every.ops[i].rank_end_ns[r]) <= 2);
      }
    }
  }
}

TEST_CASE("a collective ends with its last rank, and no rank ends before it could start") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const std::vector<NetworkOp> ops = random_ops(cluster, rng);
    const NetworkRun run = run_collectives(cluster, ops, {.share = static_cast<Share>(seed % 4)});
    for (const NetworkTimes& times : run.ops) {
      REQUIRE(times.rank_end_ns.size() == static_cast<size_t>(cluster.num_devices()));
      const auto [first, last] =
          std::minmax_element(times.rank_end_ns.begin(), times.rank_end_ns.end());
      CHECK(*last == times.end_ns);
      CHECK(*first >= times.begin_ns);
    }
  }
}

TEST_CASE("a collective beside others by flows never ends before it would alone") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Rng rng(seed);
    const Cluster cluster = test::random_cluster(rng);
    const std::vector<NetworkOp> ops = random_ops(cluster, rng);
    const NetworkRun together = run_collectives(cluster, ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      INFO("seed " << seed << ", op " << i);
      CHECK(together.ops[i].end_ns >= run_collectives(cluster, {ops[i]}).ops[0].end_ns - 1);
    }
  }
}

TEST_CASE("by collective an all-to-all and an all-reduce halve the NIC they share") {
  const NetworkRun run =
      run_collectives(eight_a_node(64), {all_to_all(kMiB), all_reduce(100 * kMiB)},
                      {.share = Share::kPerCollective});
  const double step_ns = 2 * std::floor(100 * kMiB / 64) / 50 + 5'000;
  CHECK(run.ops[1].end_ns == std::llround(126 * step_ns));
  // The NIC is never idle after the first latency, and carries the bytes of both.
  const double bytes = 8 * 56 * kMiB + 126 * std::floor(100 * kMiB / 64);
  CHECK(run.ops[0].end_ns == std::llround(bytes / 50 + 5'000));
}

TEST_CASE("by channel a ring weighs as much as one channel of a device") {
  // Until its first step ends, the ring shares a NIC with 8 devices, each of which has 56 of its 63
  // sends there: its share is 1 to 64/9 for each channel of a device.
  for (const int64_t channels : {1, 3}) {
    NetworkOp exchange = all_to_all(kMiB);
    std::get<AllToAll>(exchange.what).channels = channels;
    const double chunk = 1e6;
    const NetworkRun run =
        run_collectives(eight_a_node(64), {exchange, all_reduce(64 * chunk)},
                        {.share = Share::kPerChannel, .efficiency = 1, .keep_use = false});
    const double share = 1 / (1 + 64.0 / 9 * static_cast<double>(channels));
    // What the NIC moved before the all-to-all's end beside it, against the ring's steps so far.
    const double moved = static_cast<double>(run.ops[0].end_ns - 5'000) * 50 - 8 * 56 * kMiB;
    const double step_ns = chunk / (50 * share) + 5'000;
    CHECK(moved / chunk == Approx(static_cast<double>(run.ops[0].end_ns) / step_ns).margin(1));
  }
}

TEST_CASE("the higher priority runs as if alone, the lower one in what it leaves") {
  const Cluster cluster = eight_a_node(64);
  std::vector<NetworkOp> ops{all_to_all(kMiB), all_reduce(100 * kMiB)};
  ops[1].priority = 1;
  const NetworkOptions strict{.share = Share::kStrictPriority, .efficiency = 0.7};
  CHECK(run_collectives(cluster, ops, strict).ops[1].end_ns == 4'758'768);
  ops[0].priority = 2;
  const NetworkRun run = run_collectives(cluster, ops, strict);
  CHECK(run.ops[0].end_ns == 9'400'241);
  // Its first step waits for the all-to-all's last byte.
  CHECK(run.ops[1].end_ns == 9'400'241 + 32'768 + 125 * 37'768);
}

TEST_CASE("what is lost where two collectives meet is lost only while they do") {
  const Cluster cluster = eight_a_node(16);
  std::vector<NetworkOp> ops{all_to_all(kMiB), all_to_all(kMiB)};
  const Nanoseconds ideal = run_collectives(cluster, ops).ops[1].end_ns;
  const NetworkRun half = run_collectives(cluster, ops, {.efficiency = 0.5});
  CHECK(half.ops[1].end_ns - 5'000 == Approx(2.0 * static_cast<double>(ideal - 5'000)).margin(2));
  ops[1].after = {0};
  const NetworkRun apart = run_collectives(cluster, ops, {.efficiency = 0.5});
  CHECK(apart.ops[1].end_ns == Approx(2 * all_to_all_ns(cluster, kMiB)).margin(1));
}

TEST_CASE("a pair moves when both its ranks are there") {
  const Cluster cluster = eight_a_node(16);
  NetworkOp op = all_to_all_v(std::vector<double>(256));
  std::get<AllToAll>(op.what).bytes[0 * 16 + 8] = 50e3;   // 1 us by NIC
  std::get<AllToAll>(op.what).bytes[1 * 16 + 2] = 300e3;  // 1 us by port
  op.rank_start_ns.assign(16, 0);
  op.rank_start_ns[8] = 70'000;
  op.rank_start_ns[9] = 90'000;
  const NetworkRun run = run_collectives(cluster, {op});
  const std::vector<Nanoseconds>& end = run.ops[0].rank_end_ns;
  CHECK(end[0] == 76'000);
  CHECK(end[8] == 76'000);
  CHECK(end[1] == 3'000);
  CHECK(end[2] == 3'000);
  CHECK(end[3] == 0);
  CHECK(run.ops[0].end_ns == 90'000);  // rank 9 has nothing to wait for but comes last
  NetworkOp ring = all_reduce(100 * kMiB);
  ring.rank_start_ns = op.rank_start_ns;
  CHECK(run_collectives(cluster, {ring}).ops[0].end_ns ==
        90'000 + all_reduce_ns(cluster, {100 * kMiB, 1}));
}

TEST_CASE("what is wrong with a collective is named with its field and value") {
  const Cluster cluster = eight_a_node(16);
  const auto fails = [&](NetworkOp op, const std::string& why) {
    CHECK_THROWS_WITH(run_collectives(cluster, {all_to_all(1), op}), Catch::Contains(why));
  };
  fails(all_to_all(-1), "ops[1].bytes_per_pair = -1: must be");
  fails(all_to_all_v(std::vector<double>(255)),
        "ops[1].bytes has 255 entries: must be 16 rows of 16");
  std::vector<double> bytes(256);
  bytes[3 * 16 + 7] = -2;
  fails(all_to_all_v(bytes), "ops[1].bytes[3][7] = -2: must be");
  bytes[3 * 16 + 7] = std::numeric_limits<double>::quiet_NaN();
  fails(all_to_all_v(bytes), "ops[1].bytes[3][7] = nan: must be");
  fails(all_reduce(std::numeric_limits<double>::infinity()), "ops[1].bytes = inf: must be");
  fails(all_reduce(1, -1), "ops[1].rings = -1: must be at least 0");
  fails({AllToAll{.channels = 0}}, "ops[1].channels = 0: must be at least 1");
  fails({.what = AllReduce{1, 1}, .after = {1}}, "ops[1].after = 1: must be an earlier op");
  fails({.what = AllReduce{1, 1}, .start_ns = -5}, "ops[1].start_ns = -5");
  fails({.what = AllReduce{1, 1}, .rank_start_ns = {1, 2}},
        "ops[1].rank_start_ns has 2 entries: must be 16");
  fails(all_to_all(1e300), "beyond the clock");
  NetworkOp late{.what = AllReduce{1, 1}, .after = {0}};
  late.start_ns = Nanoseconds{1} << 53;
  fails(late, "ops[1]: waiting for the ops in `after` and for start_ms takes");
  CHECK_THROWS_WITH(run_collectives(cluster, {}, {.efficiency = 0}),
                    Catch::Contains("efficiency = 0: must be above 0"));
  CHECK_THROWS_WITH(value_named<Share>("sharing rule", "per_flows"),
                    Catch::Contains("Did you mean 'per_flow'?"));
  Cluster broken = cluster;
  broken.nics_per_node = 3;
  CHECK_THROWS_WITH(run_collectives(broken, {}), Catch::Contains("cluster.nics_per_node = 3"));
  broken = cluster;
  broken.nic.bytes_per_s = 0;
  CHECK_THROWS_WITH(run_collectives(broken, {}), Catch::Contains("cluster.nic.bytes_per_s = 0"));
}

}  // namespace
}  // namespace moe
