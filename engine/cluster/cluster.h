// Device, links, Cluster: what exists and how fast. Values only; every number comes from a Lua data
// file (with its source) or from a measurement.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/units.h"

namespace moe {

/// Achieved rates (peak times the achieved fraction), not data-sheet peaks.
struct Device {
  std::string name = "device";
  double gemm_flops_per_s = 0;    // for the element type that the model runs in
  double vector_flops_per_s = 0;  // everything that is not a GEMM
  double memory_bytes_per_s = 0;
  Nanoseconds launch_ns = 0;  // added to every compute op
  Bytes memory_bytes = 0;     // 0: unknown, no out-of-memory verdict
};

struct LinkSpec {
  double bytes_per_s = 0;
  Nanoseconds latency_ns = 0;  // one traversal of the link
};

/// nodes x devices_per_node devices. Inside a node each device has one port each way (`intra`);
/// between nodes traffic leaves by the node's nics_per_node NICs, each `nic` fast each way, shared
/// evenly by the node's devices.
struct Cluster {
  std::string name = "custom";
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  Device device;
  LinkSpec intra;
  LinkSpec nic;
  int64_t nics_per_node = 1;
  /// Start-up of an all-to-all beside the wire: base + per_peer * (devices - 1).
  Nanoseconds a2a_base_ns = 0;
  Nanoseconds a2a_per_peer_ns = 0;

  int64_t num_devices() const { return nodes * devices_per_node; }
};

/// Throws UserError naming "cluster.<field>", the value and what is allowed.
void check(const Cluster& cluster);

}  // namespace moe
