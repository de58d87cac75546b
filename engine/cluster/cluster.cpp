#include "engine/cluster/cluster.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {
namespace {

/// More devices than this are taken for a typing error: N x N values would not fit into memory.
constexpr int64_t kMaxDevices = 1 << 20;

/// Throws UserError for a rate of 0 when the link is `needed`. A rate of 0 is fine for a link that
/// no transfer crosses (the NICs of a single node).
void check_rate(const char* link, double value, bool needed) {
  if (needed && value == 0) throw user_error("cluster.{}.bytes_per_s = 0: must be above 0", link);
}

}  // namespace

Cluster dilated(Cluster cluster, double by) {
  const auto longer = [by](Nanoseconds& ns) { ns = std::llround(by * static_cast<double>(ns)); };
  for (LinkSpec* const link : {&cluster.intra, &cluster.nic}) {
    link->bytes_per_s /= by;
    longer(link->latency_ns);
  }
  longer(cluster.a2a_base_ns);
  longer(cluster.a2a_per_peer_ns);
  longer(cluster.all_reduce_base_ns);
  return cluster;
}

Cluster part_of(Cluster cluster, int64_t devices) {
  const int64_t each = cluster.devices_per_node;
  if (devices % each == 0) {
    cluster.nodes = devices / each;
  } else if (each % devices == 0) {
    cluster.nodes = 1;
    cluster.devices_per_node = devices;
    cluster.nics_per_node = std::max<int64_t>(1, cluster.nics_per_node * devices / each);
  } else {
    throw user_error(
        "grid.pp: a pipeline rank has {} devices, which are neither whole nodes of {} nor an equal "
        "part of one; give another pp",
        devices, each);
  }
  const bool by_nodes = cluster.all_reduce == AllReduceAlgorithm::kTree ||
                        cluster.all_reduce == AllReduceAlgorithm::kTwoLevel;
  if (by_nodes && cluster.nodes == 1) cluster.all_reduce = AllReduceAlgorithm::kQuickest;
  return cluster;
}

void check(const Cluster& cluster) {
  check_fields(cluster, "cluster");
  if (cluster.num_devices() > kMaxDevices) {
    throw user_error(
        "cluster.nodes = {} with {} devices each: at most {} devices in all are allowed",
        cluster.nodes, cluster.devices_per_node, kMaxDevices);
  }
  if (cluster.devices_per_node % cluster.nics_per_node != 0 &&
      cluster.nics_per_node % cluster.devices_per_node != 0) {
    throw user_error(
        "cluster.nics_per_node = {}: must divide devices_per_node = {} or be a multiple of it",
        cluster.nics_per_node, cluster.devices_per_node);
  }
  if (cluster.all_reduce == AllReduceAlgorithm::kInSwitch && !cluster.in_switch) {
    throw user_error("cluster.all_reduce = in_switch: needs a cluster with in_switch = true");
  }
  const bool by_nodes = cluster.all_reduce == AllReduceAlgorithm::kTree ||
                        cluster.all_reduce == AllReduceAlgorithm::kTwoLevel;
  if (by_nodes && cluster.nodes == 1) {
    throw user_error("cluster.all_reduce = {}: needs two nodes or more, but cluster.nodes = 1",
                     name_of(cluster.all_reduce));
  }
  check_rate("intra", cluster.intra.bytes_per_s, cluster.devices_per_node > 1);
  check_rate("nic", cluster.nic.bytes_per_s, cluster.nodes > 1);
}

}  // namespace moe
