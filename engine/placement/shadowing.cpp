#include "engine/placement/shadowing.h"

#include "engine/placement/builtin.h"
#include "engine/placement/performance_model.h"
#include "engine/placement/policies.h"

namespace moe {
namespace {

// Returns the costs by the rates. In place of a rate that is 0 (not known) it uses the options, as
// the public code does; the bytes of an expert are then those of two GEMMs in single precision.
ShadowingCosts costs_of(const PlacementRates& r, const PolicyOptions& options) {
  constexpr double kElementBytes = 4;
  const double given_d = options.at("d_model");
  const double input_bytes = r.input_bytes > 0 ? r.input_bytes : given_d * kElementBytes;
  // Number of weights in one of the two GEMMs.
  const double weights = options.at("alpha") * given_d * given_d;
  const double expert_bytes = r.expert_bytes > 0 ? r.expert_bytes : 2 * weights * kElementBytes;
  const double net = options.at("net_gbit_per_s") * 1e9 / 8;
  const double a2a = r.a2a_bytes_per_s > 0 ? r.a2a_bytes_per_s : net;
  const double copy = copy_rate(r) > 0 ? copy_rate(r) : net;
  const double flops_per_s = options.at("gemm_tflop_per_s") * 1e12;
  return {.compute_s = r.inputs_per_s > 0 ? 1 / r.inputs_per_s : 4 * weights / flops_per_s,
          .send_s = input_bytes / a2a,
          .copy_s = expert_bytes / copy};
}

}  // namespace

std::vector<int64_t> choose_shadowed(const std::vector<int64_t>& inputs,
                                     const ShadowingCosts& costs, int64_t most) {
  const std::vector<int64_t> order = heaviest_first(inputs);
  const auto step_s = [&](size_t heaviest, size_t copies) {
    const auto rows = static_cast<double>(inputs[static_cast<size_t>(order[heaviest])]);
    return (3 * costs.compute_s + 4 * costs.send_s) * rows +
           static_cast<double>(copies) * costs.copy_s;
  };
  size_t taken = 0;
  while (static_cast<int64_t>(taken) < most && taken + 1 < order.size() &&
         step_s(taken + 1, taken + 1) < step_s(taken, taken)) {
    ++taken;
  }
  return {order.begin(), order.begin() + static_cast<int64_t>(taken)};
}

/// FasterMoE's dynamic shadowing (He et al., PPoPP 2022; the policy in fastmoe's
/// fastermoe/shadow_policy.py): copies the heaviest experts to all devices.
PlacementPolicy fastermoe_shadowing_policy() {
  const auto place = [](const PlaceInput& input, const PolicyOptions& options) {
    require_shadows(input.now, "fastermoe_shadowing");
    return with_copies_everywhere(
        input.now, choose_shadowed(inputs_of_experts(input.loads), costs_of(input.rates, options),
                                   input.now.bounds().shadows));
  };
  return {
      "fastermoe_shadowing",
      "FasterMoE: the heaviest experts are copied to all devices while its model predicts a gain; "
      "the options replace rates that the plan does not have",
      place,
      {number_option("net_gbit_per_s", 50, 1e-6, 1e6, "rate at which a device receives, Gbit/s"),
       number_option("gemm_tflop_per_s", 11.5, 1e-6, 1e6,
                     "rate at which a device computes, TFLOP/s"),
       number_option("alpha", 2, 1e-6, 1e6, "width of an expert divided by d_model"),
       integer_option("d_model", 2048, 1, 1e9, "width of an input, in elements of 4 bytes")},
      false,
      Reads::kRates,
      {.now = true, .shadows = 8}};
}

}  // namespace moe
