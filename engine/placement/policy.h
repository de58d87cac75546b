// Placement policies: pure functions from the loads of a layer and the current placement to the
// next placement, and the table of the built-in ones. `place` ops run policies by name; the ops
// that carry out a placement are added in passes/placement, not here.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/field.h"
#include "engine/base/option.h"
#include "engine/placement/placement.h"

namespace moe {

/// The rates that planners use, for one device and one MoE layer. They are fitted to the cost model
/// when the plan is made (passes/), or given; never copied from a paper.
struct PlacementRates {
  double input_bytes = 0, expert_bytes = 0, state_bytes = 0;
  double a2a_bytes_per_s = 0, copy_bytes_per_s = 0, inputs_per_s = 0;
  /// Compute outside experts beside which the layer's copies and their gradients travel: fnec_s and
  /// bnec_s in Pro-Prophet and in plan texts. It is that of the block before.
  double forward_other_s = 0, backward_other_s = 0;
  /// How owners hold up copies, see performance_model.h; 0 is the paper.
  double scatter_share = 0;
  int64_t scatter_group = 1;
};
constexpr auto fields_of(const PlacementRates*) {
  using R = PlacementRates;
  return field_table<R>(
      field("input_bytes", &R::input_bytes, "bytes of one input: hidden size * element bytes"),
      field("expert_bytes", &R::expert_bytes,
            "bytes of an expert's parameters; its gradients have the same size"),
      field("state_bytes", &R::state_bytes, "optimizer state of an expert"),
      field("a2a_bytes_per_s", &R::a2a_bytes_per_s, "received by a device in an all-to-all"),
      field("copy_bytes_per_s", &R::copy_bytes_per_s,
            "received by a device while experts are copied"),
      field("inputs_per_s", &R::inputs_per_s, "inputs through the forward of an expert"),
      field("fnec_s", &R::forward_other_s,
            "forward compute outside experts of the block before, beside which copies travel"),
      field("bnec_s", &R::backward_other_s, "as fnec_s, in the backward"),
      field("scatter_share", &R::scatter_share,
            "share of an expert's copying time in which only its owner sends")
          .from(0, 1),
      field("scatter_group", &R::scatter_group,
            "consecutive devices whose owners' sending shares a NIC")
          .from(1, 1e6));
}

struct PlaceInput {
  int64_t step = 0;
  int64_t layer = 0;  // counts only MoE layers, from 0
  /// Rows of each device for each expert; where several groups of ranks hold all experts, the mean
  /// over the groups, rounded up.
  const ExpertCounts& loads;
  const Placement& now;
  PlacementRates rates;
  /// Forward compute of the experts of the layer before, on its busiest device and under the
  /// placement that the same step has made for that layer; 0 for the first layer. Without a value
  /// equation (8) takes the layer's own, as the paper prints it.
  std::optional<double> experts_before_s = {};
};

/// The layer for which a rank has last called a policy, and the forward compute of its experts.
struct LastPlaced {
  int64_t step = -1, layer = -1;
  double experts_s = 0;
};

using PlacementFunction = std::function<Placement(const PlaceInput&)>;

/// Calls a policy as runs do and checks the result. Sets input.experts_before_s if `last` is the
/// layer before in the same step, then sets `last` to this layer. Requires: `name` is the policy's
/// name, optionally followed by '@' and a hash of its code. Throws UserError or RunError, as the
/// policy does, naming policy, rank, step and layer (from 0), and UserError for an invalid
/// placement or one with the bounds of another plan.
Placement ask_policy(const PlacementFunction& policy, const std::string& name, int64_t rank,
                     PlaceInput input, LastPlaced& last);

using PolicyOptions = std::map<std::string, double>;

/// Defaults of the pass that runs a policy.
struct PlacementDefaults {
  bool now = false;  // whether a placement is used in the step of its loads; false: in the next
  int64_t shadows = 0, extra_residents = 0;
  const char* pass = nullptr;  // name of the pass; null: the policy's name
  bool weighted = false;       // whether placements share tokens by weights (Sharing::kWeighted)
  double plan_us = 0;          // time of one plan of a layer
};

struct PlacementPolicy {
  const char* name = nullptr;
  const char* doc = nullptr;
  /// Must be deterministic: every rank calls it with the same input and must get the same
  /// placement. Requires: options from resolved(). Throws UserError when the policy does not
  /// support the plan's bounds or the current placement.
  Placement (*place)(const PlaceInput& input, const PolicyOptions& options) = nullptr;
  std::vector<OptionSpec> options = {};
  /// Whether the policy may move owners and give experts more than one resident.
  bool moves_residents = false;
  /// kRates: the policy uses PlaceInput::rates, whatever its options are.
  Reads reads = Reads::kNothing;
  PlacementDefaults defaults = {};

  const char* pass() const { return defaults.pass != nullptr ? defaults.pass : name; }
};

const std::vector<PlacementPolicy>& builtin_policies();
/// Throws UserError with the nearest name when there is no such policy.
const PlacementPolicy& builtin_policy(std::string_view name);
/// Returns all options of the policy, with defaults for those not given. Throws UserError
/// "<policy>.<option> = ..., allowed ...", and with the nearest name for an unknown option.
PolicyOptions resolved(const PlacementPolicy& policy, const PolicyOptions& given);

}  // namespace moe
