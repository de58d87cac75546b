// Pro-Prophet's model of the time of one MoE layer in a step (section IV, equations 1 to 8), and
// measures of balance. Times in seconds follow from counts and rates alone, without cluster or
// graph, so a planner can compare placements with them in every step. The event engine computes
// the time of a placement in full.
// The number of copies is that of equations (4) and (5): an expert that D - n of D devices hold,
// its owner among them, counts as D - n copies. The bytes of all copies are divided by D, as if
// every device sent an equal share.
#pragma once

#include <cstdint>
#include <span>

#include "engine/placement/policy.h"

namespace moe {

/// How the copying of experts enters a layer's time: in full (equation 6), or as far as compute of
/// this and the neighbouring block does not hide it (equation 8).
enum class TimeEquation : int32_t { kBlocking = 6, kHidden = 8 };

/// Throws UserError "<who>.<field> = ..., allowed ..." unless all rates are finite, a2a_bytes_per_s
/// and inputs_per_s are above 0, and input_bytes, expert_bytes, state_bytes, copy_bytes_per_s,
/// forward_other_s and backward_other_s (fnec_s and bnec_s in messages) are at least 0.
/// copy_bytes_per_s = 0 means the same as a2a_bytes_per_s: the paper's single rate B.
void check(const PlacementRates& rates, const char* who);
double copy_rate(const PlacementRates& rates);

/// Returns s (D - n): the copies of s = `experts` experts, each missing on n = `without` of D =
/// `devices` devices; 0 <= n < D.
inline int64_t num_copies(int64_t experts, int64_t without, int64_t devices) {
  return experts * (devices - without);
}

/// Returns the number of copies in a placement: its shadows, plus one owner per copied expert.
int64_t shadow_copies(const Placement& placement);

// Times in seconds by the equation behind each. Requires: rates that pass check(), >= 1 device.
double a2a_s(const DeviceLoads& loads, const PlacementRates& rates);           // (1)
double fec_s(const DeviceLoads& loads, const PlacementRates& rates);           // (2)
double bec_s(const DeviceLoads& loads, const PlacementRates& rates);           // (3)
double trans_s(int64_t copies, int64_t devices, const PlacementRates& rates);  // (4)
double agg_s(int64_t copies, int64_t devices, const PlacementRates& rates);    // (5)
double exposed_trans_s(double trans, const DeviceLoads& loads,
                       const PlacementRates& r);  // T_PTrans in (8)
double exposed_agg_s(double agg, const DeviceLoads& loads, const PlacementRates& r);  // T_PAgg
/// Returns the time of the layer by `equation`, (6) or (8), in the paper T'(R, H, s, n). R is
/// loads.received, H is loads.computed, and copies = s (D - n), as num_copies() returns it.
double layer_s(TimeEquation equation, const DeviceLoads& loads, int64_t copies,
               const PlacementRates& rates);

/// Returns whether the devices are balanced by equation (7), also for several experts each: max H -
/// min H < alpha * mean of H, where H = `computed` (its mean is I / E when each device has one
/// expert). Devices without any inputs are balanced.
bool is_balanced(std::span<const int64_t> computed, double alpha);

/// Returns the population standard deviation of the devices' inputs; 0 is even.
double balance_degree(std::span<const int64_t> computed);
/// Returns RB, the balance degree before divided by the one after (larger is better); 1 when both
/// are 0, infinite when only the one after is 0.
double balance_ratio(std::span<const int64_t> before, std::span<const int64_t> after);

/// Returns a layer's time under a placement with shadows and second residents: the time by
/// `equation`, (6) or (8), plus the time to sum gradients over each expert's residents (in a ring
/// of r residents each sends 2 (r - 1) / r times the expert's bytes; the busiest device counts).
/// Requires: loads of the placement's size.
double placement_s(TimeEquation equation, const Placement& placement, const ExpertCounts& loads,
                   const PlacementRates& rates);
/// Returns the seconds to move parameters and state of experts from `now` to `next`: the most
/// experts that any one device sends, or that any one receives if that is more, times the bytes of
/// an expert with its state, divided by copy_rate(rates).
double move_s(const Placement& now, const Placement& next, const PlacementRates& rates);
/// Returns the steps after which a move has paid: seconds to move / seconds gained per step; 0 when
/// nothing moves and nothing is lost, infinite when nothing is gained.
double break_even_steps(double move_seconds, double gain_seconds_per_step);

}  // namespace moe
