// Metrics of a timeline: how its time divides into compute, communication and waiting. The step of
// every rank begins at time 0. What the metrics mean for a plan is in analysis/, not here.
//   makespan          the latest end over all ranks
//   compute_ns        union of the compute lane's spans, mean over ranks
//   comm_ns           union of [begin, end] over a rank's comm lanes, mean over ranks
//   exposed_comm_ns   the part of [post, end] of comm spans during which no compute span
//                     runs, mean over ranks
//   hidden_comm_ns    comm_ns minus the part of it during which no compute span runs
//   host_bound_ns     the time in which compute was ready and the host had not launched it, mean
//                     over ranks; transfers may run meanwhile
//   wait_ns           sum of begin - post over comm spans, mean over ranks: no part of the step,
//                     since transfers wait beside each other and beside compute. The step waits
//                     exposed_comm_ns - (comm_ns - hidden_comm_ns).
//
// Imbalance of compute; it makes ranks wait (wait_ns) even with infinitely fast links:
//   busiest_compute_ns   compute_ns of the rank that computes longest
//   expert_ns            sum of the compute spans of experts, mean over ranks
//   busiest_expert_ns    the same sum, but for each layer and phase that of its busiest rank
//   imbalance(), expert_imbalance()   busiest / mean; 1 if nothing is computed
//
// A collective that is cut into chunks has one span per chunk, posted when the chunk before it
// ends; so the time that other transfers take between two chunks counts as waiting.
//
// Per kind of collective, mean over ranks:
//   wait_ns           sum of begin - post: waiting for peers and for ops that an arbiter puts first
//   transfer_ns       sum of end - begin
//
// For forward and backward (not recompute), mean over ranks and layers that have all-to-alls. They
// follow Lina (ATC 2023, sections 4.3 and 7.2), which does not define the window; window_ns is a
// definition of this project.
//   layer_ns          from the first begin to the last end of the layer's ops, gate to combine
//   a2a_ns            union of [post, end] of the layer's all-to-alls
//   window_ns         from the first begin to the last end of the layer's all-to-alls
//   busy_ns           the part of that window in which a compute span of any layer runs
//   pipelining_efficiency = sum of busy_ns / sum of window_ns over both phases
#pragma once

#include "engine/base/field.h"
#include "engine/timeline/timeline.h"

namespace moe {

struct CollectiveTimes {
  Nanoseconds wait_ns = 0;
  Nanoseconds transfer_ns = 0;
};
constexpr auto fields_of(const CollectiveTimes*) {
  return field_table<CollectiveTimes>(
      field("{}_wait_ms", &CollectiveTimes::wait_ns,
            "sum over transfers of the time posted but not begun: waiting for peers, or for other "
            "transfers")
          .in(kMilliseconds),
      field("{}_transfer_ms", &CollectiveTimes::transfer_ns, "from begin to end of the transfers")
          .in(kMilliseconds));
}

struct MoeTimes {
  Nanoseconds layer_ns = 0;
  Nanoseconds a2a_ns = 0;
  Nanoseconds window_ns = 0;
  Nanoseconds busy_ns = 0;
};
constexpr auto fields_of(const MoeTimes*) {
  constexpr const char* kShown = "is shown as pipelining_efficiency";
  return field_table<MoeTimes>(
      field("moe_{}_ms", &MoeTimes::layer_ns,
            "time of an MoE layer from gate to combine, mean over ranks and layers")
          .in(kMilliseconds),
      field("a2a_{}_ms", &MoeTimes::a2a_ns,
            "time in which an all-to-all of the MoE layer is posted or in transfer")
          .in(kMilliseconds),
      internal(&MoeTimes::window_ns, kShown), internal(&MoeTimes::busy_ns, kShown));
}

/// Two times that no schedule of a step's ops on their lanes can beat: the sum of the durations of
/// the ops on the busiest lane, and the longest path of data and mutation edges.
struct LowerBound {
  Nanoseconds busiest_lane_ns = 0;
  LaneId busiest_lane;
  Nanoseconds critical_path_ns = 0;
  Nanoseconds ns() const { return std::max(busiest_lane_ns, critical_path_ns); }
};

struct Metrics {
  Nanoseconds makespan_ns = 0;
  Nanoseconds compute_ns = 0;
  Nanoseconds busiest_compute_ns = 0;
  Nanoseconds expert_ns = 0;
  Nanoseconds busiest_expert_ns = 0;
  Nanoseconds comm_ns = 0;
  Nanoseconds exposed_comm_ns = 0;
  Nanoseconds hidden_comm_ns = 0;
  Nanoseconds host_bound_ns = 0;
  Nanoseconds wait_ns = 0;
  CollectiveTimes all_to_all, all_reduce;
  MoeTimes forward, backward;
  double imbalance() const;
  double expert_imbalance() const;
  /// Returns the sum of busy_ns / the sum of window_ns over both phases; 0 without all-to-alls.
  double pipelining_efficiency() const;
};

/// The metrics as fields of a run in results.json; times are in ms.
constexpr auto fields_of(const Metrics*) {
  constexpr const char* kShown = "is shown as imbalance or expert_imbalance";
  return field_table<Metrics>(
      field("iteration_ms", &Metrics::makespan_ns, "time of a step").in(kMilliseconds),
      field("compute_ms", &Metrics::compute_ns, "time in which a rank computes").in(kMilliseconds),
      field("comm_ms", &Metrics::comm_ns, "time in which a rank transfers").in(kMilliseconds),
      field("exposed_comm_ms", &Metrics::exposed_comm_ns,
            "communication while the rank computes nothing")
          .in(kMilliseconds),
      field("hidden_comm_ms", &Metrics::hidden_comm_ns, "communication while the rank computes")
          .in(kMilliseconds),
      field(
          "host_bound_ms", &Metrics::host_bound_ns,
          "time in which compute is ready and the host has not launched it yet; 0 without a stack")
          .in(kMilliseconds),
      field("wait_ms", &Metrics::wait_ns,
            "sum over transfers of the time posted but not begun, which may be longer than the "
            "step, since they wait beside each other and compute")
          .in(kMilliseconds),
      derived("imbalance", &Metrics::imbalance,
              "compute time of the busiest rank / mean over ranks"),
      derived("expert_imbalance", &Metrics::expert_imbalance,
              "experts' compute time of each layer's busiest rank / mean over ranks"),
      inlined("a2a", &Metrics::all_to_all), inlined("all_reduce", &Metrics::all_reduce),
      inlined("forward", &Metrics::forward), inlined("backward", &Metrics::backward),
      derived("pipelining_efficiency", &Metrics::pipelining_efficiency,
              "fraction of the time from a layer's first to its last all-to-all with compute"),
      internal(&Metrics::busiest_compute_ns, kShown), internal(&Metrics::expert_ns, kShown),
      internal(&Metrics::busiest_expert_ns, kShown));
}

Metrics metrics(const Graph& graph, const Timeline& timeline);

}  // namespace moe
