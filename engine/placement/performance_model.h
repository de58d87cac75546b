// Pro-Prophet's model of the time of one MoE layer in a step (section IV, equations 1 to 8), and
// measures of balance. Times in seconds follow from counts and rates alone, without cluster or
// graph, so a planner can compare placements with them in every step. The event engine computes
// the time of a placement in full.
//
// Equations (4) and (5). An expert that D - n of D devices hold, its owner among them, counts as
// D - n copies. The paper divides the bytes of all copies by D, as if every device sent an equal
// share all the time. Ours: only an expert's owner sends at first (expert_transfers.h scatters the
// expert in parts, then devices pass parts on). This takes the share PlacementRates::scatter_share
// of the time of one expert, and owners scatter at the same time, but those that share a NIC
// (scatter_group consecutive devices) do so one after the other. So this share of the time has
// only the copies of the busiest group's experts, and the rest of it all copies. It makes no
// difference for the experts of one owner, or without a scatter_share. Copies of an expert with
// several residents come from its owner alone, and their gradients return to it, so further
// residents are no copies; placement_s() adds the sum of their gradients.
//
// Equation (8). In the paper's schedule copies travel beside FEC and FNEC of the block before, and
// their gradients beside BEC and BNEC of that block, but the equation has one T_FEC and T_BEC, of
// the layer whose copies they are, as if all layers were equal. Ours is the time of the experts of
// the layer before (PlaceInput::experts_before_s), where it is known.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/placement/policy.h"

namespace moe {

/// How the copying of experts enters a layer's time: in full (equation 6), or as far as compute of
/// the block before does not hide it (equation 8).
enum class TimeEquation : int32_t { kBlocking = 6, kHidden = 8 };

/// Throws UserError "<who>.<field> = ..., allowed ..." unless all rates are finite, a2a_bytes_per_s
/// and inputs_per_s are above 0, scatter_group is at least 1, scatter_share is from 0 to 1, and
/// input_bytes, expert_bytes, state_bytes, copy_bytes_per_s, forward_other_s and backward_other_s
/// (fnec_s and bnec_s in messages) are at least 0.
/// copy_bytes_per_s = 0 means the same as a2a_bytes_per_s: the paper's single rate B.
void check(const PlacementRates& rates, const char* who);
double copy_rate(const PlacementRates& rates);

/// Returns s (D - n): the copies of s = `experts` experts, each missing on n = `without` of D =
/// `devices` devices; 0 <= n < D.
inline int64_t num_copies(int64_t experts, int64_t without, int64_t devices) {
  return experts * (devices - without);
}

/// Counts copies as equations (4) and (5) weigh them.
class CopyCount {
 public:
  CopyCount(int64_t devices, const PlacementRates& rates)
      : share_(rates.scatter_share), group_(rates.scatter_group) {
    of_group_.resize(static_cast<size_t>((devices - 1) / group_ + 1));
  }
  /// Adds `copies` copies of an expert of this owner, the owner's own among them.
  void add(int64_t owner, int64_t copies);
  /// Returns s (D - n) of the paper, of which the scatter's share counts the busiest owners alone.
  double weighted() const { return all_ - share_ * (all_ - busiest_); }

 private:
  double share_;
  int64_t group_;
  std::vector<double> of_group_;  // copies of the experts of each group of owners
  double all_ = 0, busiest_ = 0;
};

/// Returns the weighted number of copies in a placement: its shadows and one owner per expert that
/// has any.
double shadow_copies(const Placement& placement, const PlacementRates& rates);

// Times in seconds by the equation behind each. Requires: rates that pass check(), >= 1 device.
double a2a_s(const DeviceLoads& loads, const PlacementRates& rates);          // (1)
double fec_s(const DeviceLoads& loads, const PlacementRates& rates);          // (2)
double bec_s(const DeviceLoads& loads, const PlacementRates& rates);          // (3)
double trans_s(double copies, int64_t devices, const PlacementRates& rates);  // (4)
double agg_s(double copies, int64_t devices, const PlacementRates& rates);    // (5)
/// Returns the time of the layer by `equation`, (6) or (8), in the paper T'(R, H, s, n). R is
/// loads.received, H is loads.computed, and copies = s (D - n), as num_copies() or CopyCount
/// returns it. experts_before_s: as in PlaceInput.
double layer_s(TimeEquation equation, const DeviceLoads& loads, double copies,
               const PlacementRates& rates, std::optional<double> experts_before_s = {});

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
/// Requires: loads of the placement's size. experts_before_s: as in PlaceInput.
double placement_s(TimeEquation equation, const Placement& placement, const ExpertCounts& loads,
                   const PlacementRates& rates, std::optional<double> experts_before_s = {});
/// Returns the seconds to move parameters and state of experts from `now` to `next`: the most
/// experts that any one device sends, or that any one receives if that is more, times the bytes of
/// an expert with its state, divided by copy_rate(rates).
double move_s(const Placement& now, const Placement& next, const PlacementRates& rates);
/// Returns the steps after which a move has paid: seconds to move / seconds gained per step; 0 when
/// nothing moves and nothing is lost, infinite when nothing is gained.
double break_even_steps(double move_seconds, double gain_seconds_per_step);

}  // namespace moe
