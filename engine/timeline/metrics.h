// Metrics of a timeline. A rank's interval runs from 0 to its last end.
//   makespan          the latest end over all ranks
//   compute_ns        union of the compute lane's spans, mean over ranks
//   comm_ns           union of [begin, end] over a rank's comm lanes, mean over ranks
//   exposed_comm_ns   the part of [post, end] of comm spans during which no compute span runs, mean
//   hidden_comm_ns    comm_ns less the part of it that is exposed
//   wait_ns           sum of begin - post over comm spans (waiting for peers), mean over ranks
// Imbalance, by which ranks wait (wait_ns) whatever the wire does:
//   busiest_compute_ns   compute_ns of the rank that computes longest
//   expert_ns            sum of the compute spans of experts, mean over ranks
//   busiest_expert_ns    that sum with each layer's and phase's busiest rank in place of the mean
//   imbalance(), expert_imbalance()   busiest over mean; 1 where nothing is computed
// A chunk of a collective is a span, posted where the chunk before it ends, so that what others
// transfer between two chunks is a wait.
//
// By kind of collective, mean over ranks; waiting and transferring apart:
//   wait_ns           sum of begin - post: for peers, and for what an arbiter lets pass
//   transfer_ns       sum of end - begin
//
// By phase (forward, backward), mean over ranks and over the layers that have all-to-alls (Lina,
// ATC 2023, sections 4.3 and 7.2, which defines no window; this one is ours):
//   layer_ns          from the first begin to the last end of the layer's ops, gate to combine
//   a2a_ns            union of [post, end] of its all-to-alls
//   window_ns         from the first begin to the last end of its all-to-alls
//   busy_ns           the part of that window in which a compute span runs, of any layer
//   pipelining_efficiency = sum of busy_ns / sum of window_ns over both phases
#pragma once

#include <span>

#include "engine/timeline/timeline.h"

namespace moe {

struct CollectiveTimes {
  Nanoseconds wait_ns = 0;
  Nanoseconds transfer_ns = 0;
};

struct MoeTimes {
  Nanoseconds layer_ns = 0;
  Nanoseconds a2a_ns = 0;
  Nanoseconds window_ns = 0;
  Nanoseconds busy_ns = 0;
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
  Nanoseconds wait_ns = 0;
  CollectiveTimes all_to_all, all_reduce;
  MoeTimes forward, backward;
  double imbalance() const;
  double expert_imbalance() const;
  /// 0 where there are no all-to-alls.
  double pipelining_efficiency() const;
};

Metrics metrics(const Graph& graph, const Timeline& timeline);

/// A metric as results and recipes have it: times are in ms.
struct MetricField {
  const char* name;
  const char* doc;
  double (*value)(const Metrics&);
};
/// All that results.json has of a timeline. A row is all that a new one takes: results, their
/// fields in recipes and the type stubs read the table.
std::span<const MetricField> metric_fields();

}  // namespace moe
