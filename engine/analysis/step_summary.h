// Values about the steps of a plan that results contain in addition to metrics: the times that
// stand for all steps of a run, when the forward pass ends, and the times of ops that run alone.
// The reasons why a step takes its time are in explain.h.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/limits.h"
#include "engine/plan.h"
#include "engine/timeline/metrics.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// Returns the index of the step with the median makespan. With an even number of steps, it is the
/// shorter of the two in the middle; among equal steps, the earliest. Requires: at least one step.
size_t median_step(const std::vector<Metrics>& steps);

/// Returns the indices of the steps whose mean stands for all: with the statistic "mean" all steps,
/// with "mean_after_first" all but the first, if there are others, and with "median" the median
/// step alone. Throws UserError for another statistic. Requires: at least one step.
std::vector<size_t> counted_steps(const std::vector<Metrics>& steps, std::string_view statistic);

/// Returns the mean of each time over these steps, rounded towards 0. The mean of equal steps is
/// one of them.
Metrics mean_metrics(const std::vector<Metrics>& steps, const std::vector<size_t>& counted);

/// Returns when the last forward op ends on any rank; 0 if there is none.
Nanoseconds forward_end_ns(const Graph& graph, const Timeline& timeline);

/// Returns the summed times of a rank's ops, each running alone. A key is an op kind, for all
/// collectives of that kind, "recompute", for all other ops that run again, or a segment, for all
/// other ops in it.
std::map<std::string, TimeSum> ops_alone(const Graph& graph, const CostModel& cost);

/// Shares of the time of all ops of a rank, each alone, whose times are measured: around their
/// sizes, and at other sizes (TimeSource). The rest is rates and closed forms.
struct MeasuredShares {
  double measured = 0;
  double extrapolated = 0;
};
MeasuredShares measured_shares(const Graph& graph, const CostModel& cost);

/// Returns what a step does with all slots for rows and not only with those in use: "send",
/// "compute", "send and compute" or "".
std::string padded_rows(const Graph& graph);

/// The two times of the forward pass that Lina's expert packing compares: of the all-to-all to the
/// experts and of the experts' compute, for one part of an MoE layer, each running alone.
struct MicroOpTimes {
  double a2a_ms = 0, ffn_ms = 0;  // means over layers and parts
  size_t num = 0;                 // number of (layer, part) pairs
};
MicroOpTimes micro_op_times(const Graph& graph, const CostModel& cost);

}  // namespace moe
