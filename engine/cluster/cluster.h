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

/// How much longer compute takes while a transfer runs beside it, which holds multiprocessors and
/// takes memory's rate and power: factors of its time, 1 and more. Of several transfers at a time
/// what exceeds 1 adds up.
struct OverlapSlowdown {
  double gemm = 1;
  double memory = 1;  // of all compute that is no GEMM
};

/// How links are shared where collectives meet. A flow's weight:
///   kPerFlow         1: whoever has more flows gets more
///   kPerChannel      its collective's: a ring is a channel; a sender's channels serve its flows
///   kPerCollective   1 / the unfinished flows of its collective on the fuller one of its links, so
///                    that collectives share a link evenly however they are cut
///   kStrictPriority  1 within a priority; lower priorities get what higher ones leave
enum class Share { kPerFlow, kPerChannel, kPerCollective, kStrictPriority };
const char* share_name(Share share);
/// Throws UserError with the nearest name.
Share share_named(const std::string& name);

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
  Share share = Share::kPerCollective;
  /// The part of a link's rate that is left while flows of two or more collectives move on it. An
  /// assumption: 1 is ideal sharing; Lina (ATC 2023, section 2) sees all-to-alls beside all-reduces
  /// slowed by more (x1.83 at the median, x4.14 at worst) than even sharing explains (x2 at most).
  double sharing_efficiency = 1;

  /// Of compute beside its collectives.
  OverlapSlowdown overlap_slowdown;

  int64_t num_devices() const { return nodes * devices_per_node; }
};

/// Throws UserError naming "cluster.<field>", the value and what is allowed.
void check(const Cluster& cluster);

}  // namespace moe
