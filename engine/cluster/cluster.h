// Device, links, Cluster: what exists and how fast, with the table of each one's fields. Values
// only; every number comes from a Lua data file (with its source) or from a measurement.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/base/field.h"

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

/// Ranges of rates and of times in microseconds: beyond them is a typing error, and a time of every
/// one of kMaxDevices devices is still in Nanoseconds.
constexpr double kLeastRate = 1e-9, kMostRate = 1e18, kMostStartUs = 1e9;

constexpr auto fields_of(const Device*) {
  return field_table<Device>(
      field("name", &Device::name, "in results"),
      field("gemm_flops_per_s", &Device::gemm_flops_per_s, "achieved flops per second in GEMMs")
          .from(kLeastRate, kMostRate),
      field("vector_flops_per_s", &Device::vector_flops_per_s,
            "flops per second outside GEMMs; as in GEMMs")
          .from(kLeastRate, kMostRate),
      field("memory_bytes_per_s", &Device::memory_bytes_per_s, "achieved bytes per second")
          .from(kLeastRate, kMostRate),
      field("launch_us", &Device::launch_ns, "added to every op, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("memory_bytes", &Device::memory_bytes, "0: unknown").from(0, 1e18));
}
constexpr auto fields_of(const LinkSpec*) {
  return field_table<LinkSpec>(
      field("bytes_per_s", &LinkSpec::bytes_per_s, "achieved bytes per second, one way")
          .from(kLeastRate, kMostRate),
      field("latency_us", &LinkSpec::latency_ns, "one traversal, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs));
}

/// How much longer compute takes while a transfer runs beside it, which holds multiprocessors and
/// takes memory's rate and power: factors of its time, 1 and more. Of several transfers at a time
/// what exceeds 1 adds up.
struct OverlapSlowdown {
  double gemm = 1;
  double memory = 1;  // of all compute that is no GEMM
};
constexpr auto fields_of(const OverlapSlowdown*) {
  return field_table<OverlapSlowdown>(
      field("gemm", &OverlapSlowdown::gemm, "times of GEMMs").from(1, 100),
      field("memory", &OverlapSlowdown::memory, "times of all other compute").from(1, 100));
}

/// How links are shared where collectives meet. A flow's weight:
///   kPerFlow         1: whoever has more flows gets more
///   kPerChannel      its collective's: a ring is a channel; a sender's channels serve its flows
///   kPerCollective   1 / the unfinished flows of its collective on the fuller one of its links, so
///                    that collectives share a link evenly however they are cut
///   kStrictPriority  1 within a priority; lower priorities get what higher ones leave
enum class Share { kPerFlow, kPerChannel, kPerCollective, kStrictPriority };
constexpr std::array<const char*, 4> names_of(Share) {
  return {"per_flow", "per_channel", "per_collective", "strict_priority"};
}

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

constexpr auto fields_of(const Cluster*) {
  return field_table<Cluster>(
      field("name", &Cluster::name, "in results"),
      field("nodes", &Cluster::nodes, "number of nodes").from(1, 65536).must(),
      field("devices_per_node", &Cluster::devices_per_node, "devices of a node")
          .from(1, 1024)
          .must(),
      field("device", &Cluster::device, "rates of a device; moe.collectives needs none"),
      field("intra", &Cluster::intra, "between devices of a node"),
      field("nic", &Cluster::nic, "between nodes"),
      field("nics_per_node", &Cluster::nics_per_node, "network cards of a node").from(1, 1024),
      field("a2a_base_us", &Cluster::a2a_base_ns, "start-up of an all-to-all, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("a2a_per_peer_us", &Cluster::a2a_per_peer_ns, "start-up per peer, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("share", &Cluster::share, "who gets how much of a link where collectives meet"),
      field("sharing_efficiency", &Cluster::sharing_efficiency,
            "assumed: what is left of a link's rate while two collectives use it")
          .from(1e-6, 1),
      field("overlap_slowdown", &Cluster::overlap_slowdown,
            "how much longer compute takes while a collective runs beside it"));
}

/// Throws UserError naming "cluster.<field>", the value and what is allowed.
void check(const Cluster& cluster);

}  // namespace moe
