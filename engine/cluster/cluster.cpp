#include "engine/cluster/cluster.h"

#include "engine/base/errors.h"

namespace moe {
namespace {

/// Devices beyond this are a typing error; a matrix of them would not fit into memory.
constexpr int64_t kMaxDevices = 1 << 20;

/// A rate that is 0 stands for a link that nothing crosses.
void check_rate(const char* link, double value, bool needed) {
  if (needed && value == 0) throw user_error("cluster.{}.bytes_per_s = 0: must be above 0", link);
}

}  // namespace

void check(const Cluster& cluster) {
  check_fields(cluster, "cluster");
  if (cluster.num_devices() > kMaxDevices) {
    throw user_error("cluster.nodes = {} of {} devices each: at most {} devices in all",
                     cluster.nodes, cluster.devices_per_node, kMaxDevices);
  }
  if (cluster.devices_per_node % cluster.nics_per_node != 0 &&
      cluster.nics_per_node % cluster.devices_per_node != 0) {
    throw user_error(
        "cluster.nics_per_node = {}: must divide devices_per_node = {} or be a multiple of it",
        cluster.nics_per_node, cluster.devices_per_node);
  }
  check_rate("intra", cluster.intra.bytes_per_s, cluster.devices_per_node > 1);
  check_rate("nic", cluster.nic.bytes_per_s, cluster.nodes > 1);
}

}  // namespace moe
