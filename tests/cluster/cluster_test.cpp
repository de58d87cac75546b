#include "engine/cluster/cluster.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "engine/base/errors.h"

namespace moe {
namespace {

Cluster good() {
  Cluster cluster;
  cluster.nodes = 2;
  cluster.devices_per_node = 8;
  cluster.intra = {300e9, 1000};
  cluster.nic = {50e9, 2500};
  return cluster;
}

/// What check() says about a good cluster after one change.
std::string complaint(const std::function<void(Cluster&)>& change) {
  Cluster cluster = good();
  change(cluster);
  try {
    check(cluster);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a cluster with two nodes and rates passes the check") {
  CHECK(complaint([](Cluster&) {}).empty());
  CHECK(good().num_devices() == 16);
}

TEST_CASE("links that nothing travels on need no rate") {
  CHECK(complaint([](Cluster& c) { c.nodes = 1, c.nic = {}; }).empty());
  CHECK(complaint([](Cluster& c) { c.devices_per_node = 1, c.intra = {}; }).empty());
}

TEST_CASE("NICs are shared evenly, in either direction") {
  for (const int64_t nics : {1, 2, 4, 8, 16, 24}) {
    INFO(nics);
    CHECK(complaint([nics](Cluster& c) { c.nics_per_node = nics; }).empty());
  }
  CHECK_THAT(complaint([](Cluster& c) { c.nics_per_node = 3; }),
             Catch::Contains("cluster.nics_per_node = 3"));
  CHECK_THAT(complaint([](Cluster& c) { c.nics_per_node = 12; }),
             Catch::Contains("devices_per_node = 8"));
}

TEST_CASE("a wrong field of a cluster is named with its value") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::pair<const char*, std::function<void(Cluster&)>> wrong[] = {
      {"cluster.nodes = 0:", [](Cluster& c) { c.nodes = 0; }},
      {"cluster.devices_per_node = -1:", [](Cluster& c) { c.devices_per_node = -1; }},
      {"cluster.nics_per_node = 0:", [](Cluster& c) { c.nics_per_node = 0; }},
      {"devices in all", [](Cluster& c) { c.nodes = 1 << 16, c.devices_per_node = 24; }},
      {"cluster.intra.bytes_per_s = 0:", [](Cluster& c) { c.intra.bytes_per_s = 0; }},
      {"cluster.nic.bytes_per_s = inf:", [inf](Cluster& c) { c.nic.bytes_per_s = inf; }},
      {"cluster.nic.latency_us = -0.005:", [](Cluster& c) { c.nic.latency_ns = -5; }},
      {"cluster.a2a_base_us = -0.001:", [](Cluster& c) { c.a2a_base_ns = -1; }},
      {"cluster.a2a_per_peer_us = -0.001:", [](Cluster& c) { c.a2a_per_peer_ns = -1; }},
      {"cluster.sharing_efficiency = 0: must be from 1e-06 to 1",
       [](Cluster& c) { c.sharing_efficiency = 0; }},
      {"cluster.sharing_efficiency = 1.5:", [](Cluster& c) { c.sharing_efficiency = 1.5; }},
      {"cluster.overlap_slowdown.gemm = 0.5: must be from 1 to 100",
       [](Cluster& c) { c.overlap_slowdown.gemm = 0.5; }},
      {"cluster.overlap_slowdown.memory = nan:",
       [nan](Cluster& c) { c.overlap_slowdown.memory = nan; }},
      {"cluster.sharing_efficiency = nan:", [nan](Cluster& c) { c.sharing_efficiency = nan; }},
      {"cluster.device.gemm_flops_per_s = nan:",
       [nan](Cluster& c) { c.device.gemm_flops_per_s = nan; }},
      {"cluster.device.memory_bytes_per_s = -2:",
       [](Cluster& c) { c.device.memory_bytes_per_s = -2; }},
      {"cluster.device.launch_us = -0.001:", [](Cluster& c) { c.device.launch_ns = -1; }},
      {"cluster.device.memory_bytes = -1:", [](Cluster& c) { c.device.memory_bytes = -1; }},
  };
  for (const auto& [message, change] : wrong) {
    CHECK_THAT(complaint(change), Catch::Contains(message));
  }
}

}  // namespace
}  // namespace moe
