#include "engine/network/closed_form.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "tests/network/clusters.h"

namespace moe {
namespace {

using test::eight_a_node;
using test::kMiB;

std::vector<double> uniform_matrix(int64_t n, double bytes) {
  return std::vector<double>(static_cast<size_t>(n * n), bytes);
}

std::vector<double> random_matrix(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> bytes(static_cast<size_t>(n * n));
  for (double& b : bytes) b = static_cast<double>(rng.below(1 << 20));
  return bytes;
}

TEST_CASE("a balanced all-to-all matches the flow simulator to the nanosecond") {
  CHECK(all_to_all_ns(eight_a_node(64), kMiB) == 9'400'241);
  CHECK(all_to_all_ns(eight_a_node(128), kMiB) == 20'137'659);
  CHECK(all_to_all_ns(eight_a_node(256), kMiB) == 41'612'496);
}

TEST_CASE("a skewed all-to-all matches the flow simulator to the nanosecond") {
  constexpr int64_t kDevices = 64;
  double sum = 0;
  for (int64_t j = 0; j < kDevices; ++j) sum += 1 / std::sqrt(static_cast<double>(j + 1));
  std::vector<double> bytes(kDevices * kDevices);
  for (int64_t i = 0; i < kDevices; ++i) {
    for (int64_t j = 0; j < kDevices; ++j) {
      const double weight = kDevices / std::sqrt(static_cast<double>(j + 1)) / sum;
      bytes[static_cast<size_t>(i * kDevices + j)] = std::floor(kMiB * weight);
    }
  }
  CHECK(all_to_all_v_ns(eight_a_node(kDevices, 1), bytes) == 22'506'308);
  CHECK(all_to_all_v_ns(eight_a_node(kDevices, 4), bytes) == 35'153'297);
}

TEST_CASE("a ring all-reduce matches the flow simulator to the nanosecond") {
  CHECK(all_reduce_ns(eight_a_node(64), {100 * kMiB}) == 4'758'768);
  CHECK(all_reduce_ns(eight_a_node(128), {100 * kMiB}) == 5'431'536);
  CHECK(all_reduce_ns(eight_a_node(256), {100 * kMiB}) == 6'727'920);
}

TEST_CASE("equal entries of a matrix take the time of the balanced all-to-all") {
  for (const int64_t nodes : {1, 2, 4}) {
    for (const int64_t nics : {1, 2, 4, 8, 16}) {
      Cluster cluster = eight_a_node(nodes * 8, nics);
      cluster.a2a_base_ns = 20'000;
      cluster.a2a_per_peer_ns = 2'000;
      INFO(nodes << " nodes, " << nics << " NICs");
      CHECK(all_to_all_v_ns(cluster, uniform_matrix(cluster.num_devices(), 12345)) ==
            all_to_all_ns(cluster, 12345));
    }
  }
}

TEST_CASE("inside one node only the device ports carry an all-to-all") {
  Cluster cluster = eight_a_node(8);
  cluster.nic = {};
  // 7 peers * 3e6 bytes at 300e9 bytes/s, and two traversals of 1 us.
  CHECK(all_to_all_ns(cluster, 3e6) == 70'000 + 2'000);
  std::vector<double> bytes(64);
  bytes[2 * 8 + 5] = 6e6;
  bytes[3 * 8 + 5] = 3e6;
  CHECK(all_to_all_v_ns(cluster, bytes) == 30'000 + 2'000);
}

TEST_CASE("the diagonal of the matrix is free") {
  const Cluster cluster = eight_a_node(16);
  std::vector<double> bytes = random_matrix(16, 1);
  const Nanoseconds before = all_to_all_v_ns(cluster, bytes);
  for (size_t i = 0; i < 16; ++i) bytes[i * 16 + i] = 1e15;
  CHECK(all_to_all_v_ns(cluster, bytes) == before);
}

TEST_CASE("an all-to-all-v takes as long backwards, and never less when a pair sends more") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Cluster cluster = eight_a_node(16, int64_t{1} << (seed % 4));
    std::vector<double> bytes = random_matrix(16, seed);
    std::vector<double> transposed(256);
    for (size_t i = 0; i < 256; ++i) transposed[i % 16 * 16 + i / 16] = bytes[i];
    const Nanoseconds alone = all_to_all_v_ns(cluster, bytes);
    CHECK(all_to_all_v_ns(cluster, transposed) == alone);
    bytes[seed * 7 % 256] += 1e6;
    CHECK(all_to_all_v_ns(cluster, bytes) >= alone);
  }
}

TEST_CASE("on dilated links every collective takes as many times as long") {
  constexpr double kBy = 3;
  Cluster cluster = eight_a_node(32);
  cluster.a2a_base_ns = 5'000;
  cluster.a2a_per_peer_ns = 700;
  cluster.all_reduce_base_ns = 9'000;
  const Cluster slow = dilated(cluster, kBy);
  // Closed forms are rounded to whole nanoseconds, before and after the multiplication.
  const auto as_many = [by = kBy](Nanoseconds ns) {
    return Approx(by * static_cast<double>(ns)).epsilon(0).margin(by);
  };
  for (const double bytes : {0.0, 1e3, 1e6}) {
    const AllReduce sum = {.bytes = bytes};
    CHECK(static_cast<double>(all_to_all_ns(slow, bytes)) ==
          as_many(all_to_all_ns(cluster, bytes)));
    CHECK(static_cast<double>(all_reduce_ns(slow, sum)) == as_many(all_reduce_ns(cluster, sum)));
  }
  CHECK(all_to_all_ns(cluster, 1e6) > 0);
}

TEST_CASE("neighbours share a NIC") {
  const Cluster cluster = eight_a_node(16, 4);  // 12.5e9 bytes/s for two devices
  std::vector<double> bytes(256);
  bytes[0 * 16 + 8] = 12.5e6;
  bytes[2 * 16 + 10] = 12.5e6;  // another NIC at either end
  CHECK(all_to_all_v_ns(cluster, bytes) == 1'000'000 + 5'000);
  bytes[1 * 16 + 12] = 12.5e6;  // the NIC of device 0
  CHECK(all_to_all_v_ns(cluster, bytes) == 2'000'000 + 5'000);
}

TEST_CASE("a device with two NICs sends twice as fast") {
  Cluster cluster = eight_a_node(16, 8);
  const Nanoseconds one = all_to_all_ns(cluster, kMiB) - 5'000;
  cluster.nics_per_node = 16;
  const Nanoseconds two = all_to_all_ns(cluster, kMiB) - 5'000;
  CHECK(std::abs(one - 2 * two) <= 2);
}

TEST_CASE("an all-to-all starts up with a base and a part per peer, also when it carries nothing") {
  Cluster cluster = eight_a_node(16);
  const Nanoseconds wire = all_to_all_ns(cluster, 1000);
  cluster.a2a_base_ns = 20'000;
  cluster.a2a_per_peer_ns = 2'000;
  CHECK(all_to_all_ns(cluster, 1000) == wire + 20'000 + 15 * 2'000);
  CHECK(all_to_all_ns(cluster, 0) == 50'000);
  CHECK(all_to_all_v_ns(cluster, uniform_matrix(16, 0)) == 50'000);
}

TEST_CASE("a lone device communicates in no time") {
  Cluster cluster;
  cluster.a2a_base_ns = 20'000;
  CHECK(all_to_all_ns(cluster, 1e9) == 0);
  CHECK(all_to_all_v_ns(cluster, uniform_matrix(1, 1e9)) == 0);
  CHECK(all_reduce_ns(cluster, {1e9}) == 0);
}

TEST_CASE("a ring per NIC uses every NIC of a node, one ring only one") {
  const Cluster cluster = eight_a_node(64, 4);
  const double chunk = std::floor(100 * kMiB / 64);
  CHECK(all_reduce_ns(cluster, {100 * kMiB, 1}) ==
        std::llround(126 * (chunk / 12.5e9 * 1e9 + 5'000)));
  // Four rings of a quarter each on four NICs: the time of one ring on one NIC four times as fast.
  CHECK(all_reduce_ns(cluster, {100 * kMiB, 4}) == all_reduce_ns(eight_a_node(64), {100 * kMiB}));
  CHECK(all_reduce_ns(cluster, {100 * kMiB}) == all_reduce_ns(cluster, {100 * kMiB, 4}));
}

TEST_CASE("a ring inside one node runs at the ports' rate") {
  const Cluster cluster = eight_a_node(8);
  CHECK(all_reduce_ns(cluster, {2.4e6}) == 14 * (1'000 + 2'000));
}

TEST_CASE("an all-reduce of fewer bytes than devices still pays its steps' latencies") {
  CHECK(all_reduce_ns(eight_a_node(64), {4}) == 126 * 5'000);
}

TEST_CASE("a matrix that is not one of the cluster is refused with the entry") {
  const Cluster cluster = eight_a_node(16);
  CHECK_THROWS_WITH(all_to_all_v_ns(cluster, uniform_matrix(8, 1)),
                    Catch::Contains("64 entries: must be 16 rows of 16"));
  std::vector<double> bytes = uniform_matrix(16, 1);
  bytes[3 * 16 + 7] = -1;
  CHECK_THROWS_WITH(all_to_all_v_ns(cluster, bytes), Catch::Contains("bytes[3][7] = -1"));
  bytes[3 * 16 + 7] = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS(all_to_all_v_ns(cluster, bytes), UserError);
  CHECK_THROWS_AS(all_to_all_ns(cluster, -1), UserError);
  CHECK_THROWS_AS(all_reduce_ns(cluster, {std::numeric_limits<double>::infinity()}), UserError);
  CHECK_THROWS_AS(all_reduce_ns(cluster, {1, -1}), UserError);
  CHECK_THROWS_WITH(all_to_all_ns(cluster, 1e300), Catch::Contains("beyond the clock"));
}

}  // namespace
}  // namespace moe
