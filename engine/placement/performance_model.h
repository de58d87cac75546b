// Pro-Prophet's model of one MoE layer's step (section IV, equations 1 to 8), and how even device
// loads are. Seconds, from counts and rates alone: no device, no network, no graph; the event
// engine judges a placement, this ranks placements fast enough to be asked every step.
// Copies of experts are counted as in (4) and (5), spread over all devices: an expert that is held
// by all but n of D devices, its owner among them, is D - n copies.
#pragma once

#include <cstdint>
#include <span>

#include "engine/placement/policy.h"

namespace moe {

/// The layer's time with copies that block (6), or hidden behind compute of the same and the
/// neighbouring block (8).
enum class TimeEquation : int32_t { kBlocking = 6, kHidden = 8 };

/// Throws UserError "<who>.<field> = ..., allowed ..." unless input and expert bytes are at least
/// 0, a2a_bytes_per_s and inputs_per_s above 0, copy_bytes_per_s and forward_other_s,
/// backward_other_s at least 0, and all finite. copy_bytes_per_s = 0 says: as a2a_bytes_per_s, the
/// paper's one rate B.
void check(const PlacementRates& rates, const char* who);
double copy_rate(const PlacementRates& rates);

/// s (D - n) for s experts that n devices each go without; 0 <= n < D.
inline int64_t num_copies(int64_t experts, int64_t without, int64_t devices) {
  return experts * (devices - without);
}

/// The same for the copies of a placement: owners of experts that have any count with them.
int64_t shadow_copies(const Placement& placement);

// Requires: rates as check() wants them, at least one device.
double a2a_s(const DeviceLoads& loads, const PlacementRates& rates);           // (1)
double fec_s(const DeviceLoads& loads, const PlacementRates& rates);           // (2)
double bec_s(const DeviceLoads& loads, const PlacementRates& rates);           // (3)
double trans_s(int64_t copies, int64_t devices, const PlacementRates& rates);  // (4)
double agg_s(int64_t copies, int64_t devices, const PlacementRates& rates);    // (5)
double exposed_trans_s(double trans, const DeviceLoads& loads,
                       const PlacementRates& r);                                      // T_PTrans
double exposed_agg_s(double agg, const DeviceLoads& loads, const PlacementRates& r);  // T_PAgg
/// T'(R, H, s, n) by (6) or (8).
double layer_s(TimeEquation equation, const DeviceLoads& loads, int64_t copies,
               const PlacementRates& rates);

/// (7), for several experts per device too: max H - min H < alpha * the mean of H (I / E where each
/// device has one expert). Devices without any input are balanced.
bool is_balanced(std::span<const int64_t> computed, double alpha);

/// Standard deviation (of the population) of the devices' inputs: 0 is even.
double balance_degree(std::span<const int64_t> computed);
/// RB: balance degree before over after; more is better; 1 where both are 0, infinite where only
/// the latter is.
double balance_ratio(std::span<const int64_t> before, std::span<const int64_t> after);

/// A layer's step under a placement, shadows and second residents alike: (6) or (8), and the sum of
/// gradients over each expert's residents (a ring's 2 (r - 1) / r expert bytes on each, the busiest
/// device's). Requires loads of the placement's sizes.
double placement_s(TimeEquation equation, const Placement& placement, const ExpertCounts& loads,
                   const PlacementRates& rates);
/// What it takes to go from one placement's residents to the other's: parameters and state, the
/// device that sends or receives most, at the rate of copies.
double move_s(const Placement& now, const Placement& next, const PlacementRates& rates);
/// Steps after which a move has paid: seconds to move over seconds gained a step; 0 where nothing
/// moves and nothing is lost, infinite where nothing is gained.
double break_even_steps(double move_seconds, double gain_seconds_per_step);

}  // namespace moe
