#include "engine/cluster/cluster.h"

#include <cmath>
#include <utility>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {
namespace {

/// Devices beyond this are a typing error; a matrix of them would not fit into memory.
constexpr int64_t kMaxDevices = 1 << 20;
/// Of a latency or a start-up; for every device of kMaxDevices it is still in Nanoseconds.
constexpr Nanoseconds kMaxTime = 1'000'000'000'000;

constexpr std::pair<Share, const char*> kShares[] = {
    {Share::kPerFlow, "per_flow"},
    {Share::kPerChannel, "per_channel"},
    {Share::kPerCollective, "per_collective"},
    {Share::kStrictPriority, "strict_priority"},
};

void check_count(const char* field, int64_t value) {
  if (value < 1 || value > kMaxDevices) {
    throw user_error("cluster.{} = {}: must be from 1 to {}", field, value, kMaxDevices);
  }
}

void check_rate(const std::string& field, double value, bool needed) {
  if (!std::isfinite(value) || value < 0 || (needed && value == 0)) {
    throw user_error("cluster.{} = {}: must be a finite number {} 0", field, value,
                     needed ? "above" : "of at least");
  }
}

void check_time(const std::string& field, Nanoseconds value) {
  if (value < 0 || value > kMaxTime) {
    throw user_error("cluster.{} = {} ns: must be from 0 to {}", field, value, kMaxTime);
  }
}

void check_link(const std::string& field, const LinkSpec& link, bool needed) {
  check_rate(field + ".bytes_per_s", link.bytes_per_s, needed);
  check_time(field + ".latency_ns", link.latency_ns);
}

}  // namespace

const char* share_name(Share share) {
  for (const auto& [known, name] : kShares) {
    if (known == share) return name;
  }
  return "";
}

Share share_named(const std::string& name) {
  for (const auto& [share, share_name] : kShares) {
    if (name == share_name) return share;
  }
  std::vector<std::string> names;
  for (const auto& [share, share_name] : kShares) names.push_back(share_name);
  throw UserError(unknown_name("sharing rule", name, names));
}

void check(const Cluster& cluster) {
  check_count("nodes", cluster.nodes);
  check_count("devices_per_node", cluster.devices_per_node);
  check_count("nics_per_node", cluster.nics_per_node);
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
  check_link("intra", cluster.intra, cluster.devices_per_node > 1);
  check_link("nic", cluster.nic, cluster.nodes > 1);
  check_time("a2a_base_ns", cluster.a2a_base_ns);
  check_time("a2a_per_peer_ns", cluster.a2a_per_peer_ns);
  if (!(cluster.sharing_efficiency > 0 && cluster.sharing_efficiency <= 1)) {
    throw user_error("cluster.sharing_efficiency = {}: must be above 0 and at most 1",
                     cluster.sharing_efficiency);
  }
  for (const auto& [field, factor] : {std::pair("gemm", cluster.overlap_slowdown.gemm),
                                      std::pair("memory", cluster.overlap_slowdown.memory)}) {
    if (!(factor >= 1) || !std::isfinite(factor)) {
      throw user_error("cluster.overlap_slowdown.{} = {}: must be a factor of at least 1", field,
                       factor);
    }
  }
  const Device& device = cluster.device;
  check_rate("device.gemm_flops_per_s", device.gemm_flops_per_s, false);
  check_rate("device.vector_flops_per_s", device.vector_flops_per_s, false);
  check_rate("device.memory_bytes_per_s", device.memory_bytes_per_s, false);
  check_time("device.launch_ns", device.launch_ns);
  if (device.memory_bytes < 0) {
    throw user_error("cluster.device.memory_bytes = {}: must be at least 0", device.memory_bytes);
  }
}

}  // namespace moe
