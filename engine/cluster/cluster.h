// The hardware of a run: Device, LinkSpec and Cluster (which parts exist and their rates), each
// with the table of its fields. Values only; every number comes from a Lua data file (with its
// source) or from a measurement. Times of transfers are in network/, of ops in cost/.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/base/field.h"

namespace moe {

/// A device: the rates that it achieves (peak times the achieved fraction), not data-sheet peaks.
struct Device {
  std::string name = "device";
  double gemm_flops_per_s = 0;    // for the element type of the model
  double vector_flops_per_s = 0;  // for all compute that is not a GEMM
  double memory_bytes_per_s = 0;
  Nanoseconds launch_ns = 0;  // added to the time of every compute op
  Bytes memory_bytes = 0;     // 0 means unknown: no check for out of memory
  std::string op_times;       // path of a file for cost/op_table.h; empty means none
  /// What times of op_times are multiplied by, where they are of another model of the GPU; those of
  /// bf16 are then also taken for an element type without a table. 0 means neither.
  double op_times_ratio = 0;
  /// Path of a file for cost/op_table.h with times measured inside a training step, which hold in
  /// place of those of op_times and of attention_backward; empty means none.
  std::string step_times;
  /// What times of op_times are multiplied by in a training step where step_times has none: there a
  /// product runs at lower clocks than alone, and beside others.
  double step_ratio = 1;
  /// Time of the backward of attention in units of its forward, used with op_times, which have no
  /// backward: 2.5 times the flops, at 63% of the peak where the forward reaches 73% (Dao,
  /// FlashAttention-2, 2023, section 4).
  double attention_backward = 2.9;
};

struct LinkSpec {
  double bytes_per_s = 0;
  Nanoseconds latency_ns = 0;  // one traversal of the link
};

/// Allowed ranges of rates (per second) and of times in microseconds. A value outside them is taken
/// for a typing error. Sums of such times over kMaxDevices devices still fit into Nanoseconds.
constexpr double kLeastRate = 1e-9, kMostRate = 1e18, kMostStartUs = 1e9;

constexpr auto fields_of(const Device*) {
  return field_table<Device>(
      field("name", &Device::name, "name of the device in results"),
      field("gemm_flops_per_s", &Device::gemm_flops_per_s, "achieved flops per second in GEMMs")
          .from(kLeastRate, kMostRate),
      field("vector_flops_per_s", &Device::vector_flops_per_s,
            "achieved flops per second outside GEMMs")
          .from(kLeastRate, kMostRate),
      field("memory_bytes_per_s", &Device::memory_bytes_per_s,
            "achieved bytes per second of the device's memory")
          .from(kLeastRate, kMostRate),
      field("launch_us", &Device::launch_ns, "time added to every compute op, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("memory_bytes", &Device::memory_bytes, "memory of a device in bytes; 0 means unknown")
          .from(0, 1e18),
      field("op_times", &Device::op_times,
            "GPU whose measured op times replace the rates for ops that it has"),
      field("op_times_ratio", &Device::op_times_ratio,
            "factor of the measured op times, of bf16 where they have no table of the type")
          .from(0.01, 100),
      field("step_times", &Device::step_times,
            "GPU whose op times, measured inside a training step, hold in place of op_times"),
      field("step_ratio", &Device::step_ratio,
            "time of a product inside a training step in units of op_times, where step_times has "
            "none")
          .from(0.1, 10),
      field("attention_backward", &Device::attention_backward,
            "with op_times: time of the backward of attention in units of its forward")
          .from(1, 10));
}
constexpr auto fields_of(const LinkSpec*) {
  return field_table<LinkSpec>(
      field("bytes_per_s", &LinkSpec::bytes_per_s, "achieved bytes per second in one direction")
          .from(kLeastRate, kMostRate),
      field("latency_us", &LinkSpec::latency_ns,
            "latency of one traversal of the link, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs));
}

/// How much longer compute and transfers take beside each other, since a transfer occupies
/// multiprocessors and takes memory bandwidth and power. Each member is a factor of time, at least
/// 1. When several transfers run at once, the excess of each factor over 1 is added up.
struct OverlapSlowdown {
  double gemm = 1;
  double memory = 1;    // for all compute that is not a GEMM
  double transfer = 1;  // for a transfer while compute runs
};
constexpr auto fields_of(const OverlapSlowdown*) {
  return field_table<OverlapSlowdown>(
      field("gemm", &OverlapSlowdown::gemm, "factor of the time of GEMMs").from(1, 100),
      field("memory", &OverlapSlowdown::memory, "factor of the time of all other compute")
          .from(1, 100),
      field("transfer", &OverlapSlowdown::transfer,
            "factor of the time of transfers beside compute")
          .from(1, 100));
}

/// How collectives that use a link at the same time share it. Every flow (the bytes of one transfer
/// from one device to another) gets a weight:
///   kPerFlow         1: a collective with more flows gets more of the link
///   kPerChannel      the channels of its collective: each ring of an all-reduce is one channel; in
///                    an all-to-all the channels of a sender are divided among its flows
///   kPerCollective   1 / the number of unfinished flows of its collective, counted on that link
///                    of the flow that has more of them: collectives share a link evenly, whatever
///                    the number of their flows
///   kStrictPriority  1 within a priority; a lower priority gets only what higher ones leave
enum class Share { kPerFlow, kPerChannel, kPerCollective, kStrictPriority };
constexpr std::array<const char*, 4> names_of(Share) {
  return {"per_flow", "per_channel", "per_collective", "strict_priority"};
}

/// How an all-reduce moves its bytes; network/all_reduce.h describes each algorithm. kQuickest: the
/// quickest of the other four for the op's bytes and group.
enum class AllReduceAlgorithm { kQuickest, kRing, kTree, kTwoLevel, kInSwitch };
constexpr std::array<const char*, 5> names_of(AllReduceAlgorithm) {
  return {"quickest", "ring", "tree", "two_level", "in_switch"};
}

/// A cluster of nodes x devices_per_node devices. Inside a node each device has one port in each
/// direction (`intra`). Traffic between nodes leaves through the node's nics_per_node NICs, each
/// with the rate `nic` in each direction; the devices of a node are divided evenly among its NICs.
struct Cluster {
  std::string name = "custom";
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  Device device;
  LinkSpec intra;
  LinkSpec nic;
  int64_t nics_per_node = 1;
  /// Start-up time of an all-to-all, added to the transfer: base + per_peer * peers.
  Nanoseconds a2a_base_ns = 0;
  Nanoseconds a2a_per_peer_ns = 0;
  Nanoseconds all_reduce_base_ns = 0;  // start-up time of an all-reduce, added to the transfer
  AllReduceAlgorithm all_reduce = AllReduceAlgorithm::kQuickest;
  /// Whether the switch in a node can add what the devices send (NVLink SHARP, from Hopper on).
  bool in_switch = false;
  Share share = Share::kPerCollective;
  /// The fraction of a link's rate that remains while flows of two or more collectives use the
  /// link. It is an assumption; 1 is ideal sharing. Lina (ATC 2023, section 2) measures that
  /// all-to-alls slow down more while all-reduces run (x1.83 at the median, x4.14 at worst) than
  /// even sharing explains (x2 at most).
  double sharing_efficiency = 1;

  /// How much longer compute takes while collectives run, and these beside compute.
  OverlapSlowdown overlap_slowdown;
  std::string collective_times;  // path of a file for cost/op_table.h; empty means none

  int64_t num_devices() const { return nodes * devices_per_node; }
};

constexpr auto fields_of(const Cluster*) {
  return field_table<Cluster>(
      field("name", &Cluster::name, "name of the cluster in results"),
      field("nodes", &Cluster::nodes, "number of nodes").from(1, 65536).must(),
      field("devices_per_node", &Cluster::devices_per_node, "number of devices per node")
          .from(1, 1024)
          .must(),
      field("device", &Cluster::device, "rates of a device; moe.collectives does not need them"),
      field("intra", &Cluster::intra, "link between devices of the same node"),
      field("nic", &Cluster::nic, "link of one NIC, between nodes"),
      field("nics_per_node", &Cluster::nics_per_node, "NICs per node").from(1, 1024),
      field("a2a_base_us", &Cluster::a2a_base_ns, "start-up time of an all-to-all, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("a2a_per_peer_us", &Cluster::a2a_per_peer_ns,
            "start-up time of an all-to-all per peer, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("all_reduce_base_us", &Cluster::all_reduce_base_ns,
            "start-up time of an all-reduce, microseconds")
          .in(kMicroseconds)
          .from(0, kMostStartUs),
      field("all_reduce", &Cluster::all_reduce,
            "algorithm of all-reduces; ring in groups that allow no other"),
      field("in_switch", &Cluster::in_switch,
            "whether the switch inside a node adds, for all-reduces by 'in_switch'"),
      field("share", &Cluster::share, "how collectives that use a link at the same time share it"),
      field("sharing_efficiency", &Cluster::sharing_efficiency,
            "assumed: the fraction of a link's rate that remains while two collectives use it")
          .from(1e-6, 1),
      field("overlap_slowdown", &Cluster::overlap_slowdown,
            "how much longer compute takes while a collective runs, and this beside compute"),
      field("collective_times", &Cluster::collective_times,
            "GPU whose measured collectives inside a node replace formulas"));
}

/// Returns the cluster with links that are `by` times slower: rates are divided by it, latencies
/// and start-up times multiplied, so that every transfer takes `by` times as long. Requires:
/// by > 0.
Cluster dilated(Cluster cluster, double by);

/// Returns the cluster that `devices` neighbouring devices are, such as those of a pipeline rank:
/// whole nodes, or an equal part of a node with its share of the NICs. Throws UserError where they
/// are neither.
Cluster part_of(Cluster cluster, int64_t devices);

/// Throws UserError naming "cluster.<field>", the value and what is allowed.
void check(const Cluster& cluster);

}  // namespace moe
