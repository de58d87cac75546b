// Placement policies: pure functions from the loads of a layer (and the placement in force) to the
// next placement. The table of the built-in ones; ops/place runs them by name.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/field.h"
#include "engine/base/option.h"
#include "engine/placement/placement.h"

namespace moe {

/// What planners count with: one device, one MoE layer. Fitted to the cost model in use when the
/// plan is made (passes/), or given; never copied from a paper.
struct PlacementRates {
  double input_bytes = 0, expert_bytes = 0, state_bytes = 0;
  double a2a_bytes_per_s = 0, copy_bytes_per_s = 0, inputs_per_s = 0;
  /// Non-expert compute of a block: the fnec_s and bnec_s of Pro-Prophet and of plan texts.
  double forward_other_s = 0, backward_other_s = 0;
};
constexpr auto fields_of(const PlacementRates*) {
  using R = PlacementRates;
  return field_table<R>(
      field("input_bytes", &R::input_bytes, "of one input: hidden * element bytes"),
      field("expert_bytes", &R::expert_bytes, "parameters of an expert; its gradients alike"),
      field("state_bytes", &R::state_bytes, "optimizer state of an expert"),
      field("a2a_bytes_per_s", &R::a2a_bytes_per_s, "what a device receives in an all-to-all"),
      field("copy_bytes_per_s", &R::copy_bytes_per_s, "what it receives while experts are copied"),
      field("inputs_per_s", &R::inputs_per_s, "inputs through an expert's forward"),
      field("fnec_s", &R::forward_other_s, "forward compute of a block beside its experts"),
      field("bnec_s", &R::backward_other_s, "backward compute of a block beside its experts"));
}

struct PlaceInput {
  int64_t step = 0;
  int64_t layer = 0;  // MoE layers from 0
  const ExpertCounts& loads;
  const Placement& now;
  PlacementRates rates;
};

using PlacementFunction = std::function<Placement(const PlaceInput&)>;

/// One call of a policy as runs make it, checked. Requires: `name` is its name, perhaps with '@'
/// and a hash of its code behind. Throws UserError or RunError, as the policy does, naming policy,
/// rank, step and layer (from 0), and UserError for a placement of another plan or one that cannot
/// be.
Placement ask_policy(const PlacementFunction& policy, const std::string& name, int64_t rank,
                     const PlaceInput& input);

using PolicyOptions = std::map<std::string, double>;

/// What the pass that runs a policy has unless a system says otherwise.
struct PlacementDefaults {
  bool now = false;  // in force in the step whose loads it is made from, not in the next
  int64_t shadows = 0, extra_residents = 0;
  const char* pass = nullptr;  // the pass's name; the policy's
};

struct PlacementPolicy {
  const char* name = nullptr;
  const char* doc = nullptr;
  /// Deterministic: every rank calls it with the same input and must get the same placement.
  /// Requires options as resolved() gives them. Throws UserError where the plan's bounds or the
  /// placement in force are none that the policy can work with.
  Placement (*place)(const PlaceInput& input, const PolicyOptions& options) = nullptr;
  std::vector<OptionSpec> options = {};
  /// Owners may move, and experts may have more residents than their owner.
  bool moves_residents = false;
  /// kRates: it counts with PlaceInput::rates, whatever its options are.
  Reads reads = Reads::kNothing;
  PlacementDefaults defaults = {};

  const char* pass() const { return defaults.pass != nullptr ? defaults.pass : name; }
};

const std::vector<PlacementPolicy>& builtin_policies();
/// Throws UserError with the nearest name.
const PlacementPolicy& builtin_policy(std::string_view name);
/// Every option of the policy, the given ones and the defaults of the others. Throws UserError
/// "<policy>.<option> = ..., allowed ...", or with the nearest name for one that is unknown.
PolicyOptions resolved(const PlacementPolicy& policy, const PolicyOptions& given);

}  // namespace moe
