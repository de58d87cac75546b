// The time of one op of given sizes on a cluster, without a graph: measured where the device has
// tables (op_table.h), else by the rates of the cluster.
#pragma once

#include <string>
#include <vector>

#include "engine/cluster/cluster.h"
#include "engine/cost/cost_model.h"

namespace moe {

struct OpTimeQuery {
  /// "experts" or an op of measured_ops().
  std::string op;
  /// "f16" (which takes the tables' times of bf16), "bf16", "f32", "tf32", "fp8", "fp8_block": the
  /// type of which Device::gemm_flops_per_s is the rate (0: there is none). Collectives do not read
  /// it.
  std::string dtype = "bf16";
  /// MeasuredOp::axes. experts: tokens of the whole expert-parallel group, hidden, inner, experts,
  /// k, ep. Collectives: ranks, bytes that a rank holds before the exchange (in an all-to-all with
  /// its part for itself).
  std::vector<double> sizes;
  /// Of a matrix product: its time inside a training step, as plans take it (ProductTimes), in
  /// place of that of its kernel alone.
  bool in_step = false;
  std::string load = "balanced";  // for experts: a load of the device's tables
  /// The cluster's own measured collectives, which hold for all of its ranks as in RooflineCost,
  /// and where they come from.
  std::map<Collective, InterpolatedTable> collectives = {};
  std::string collectives_from = "";
};

struct OpTimeAnswer {
  double ns = 0, lo_ns = 0, hi_ns = 0;
  std::string source;
  bool extrapolated = false;
  bool measured = false;  // false: by the rates or links of the cluster; lo and hi are then ns
};

/// Returns the time that a plan takes for the op (RooflineCost), which of experts are the products
/// and the activation of one rank; but of a layer of experts that was measured as one kernel, and
/// under a skewed load, the time of that kernel: OpTimeAnswer::source says what it does in
/// addition. Throws UserError for an op, element type or load that neither the tables nor the rates
/// have, and for a time beyond the clock (kLongestNs).
/// Requires: as many sizes as the op has, each above 0.
OpTimeAnswer op_time(const Cluster& cluster, const OpTimeQuery& query);

}  // namespace moe
