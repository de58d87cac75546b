// Lina's two-phase allocation of devices to the experts of one MoE layer in inference (USENIX ATC
// 2023, section 5.2): phase 1 places by an estimate before the gate, phase 2 compares the estimate
// with what the gate chose and places again where they differ. Pure functions; a mapping is a
// Placement whose residents are the device's slots. There is
// no owner's state in inference: the owner is the first holder.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

struct TwoPhaseOptions {
  /// Experts a device at most; at least experts / devices (UserError otherwise).
  int64_t cap = 4;
  /// Of the random devices for experts that nobody expects, when no device is free.
  uint64_t seed = 0;
  /// How an expert's tokens fall to its replicas: false, evenly, as the paper says, so that the one
  /// that takes a small rest gets as much as a whole device; true, in proportion to what phase 1
  /// gave each of them (Sharing::kWeighted; not in the paper).
  bool weighted = false;
};

/// Phase 1. wanted [experts]: n_e (Eq. 1), not negative and at most `devices` in all.
///  1. An expert with n_e >= 1 takes floor(n_e) whole devices, the most wanted first.
///  2. What is left of it and experts with 0 < n_e < 1 fall into the other devices, largest first,
///     each into the first one where the sum stays <= 1 and fewer than cap experts are; where there
///     is none, to the device that has the least to do.
///  3. Experts with n_e = 0 are spread evenly over the devices that are still free; where there is
///     none, each goes to a random device with a free slot.
/// Where no slot is left for an expert without a place, the expert with most replicas gives one up;
/// a rest that finds none is dropped, its expert having whole devices. Ties go to the lower number.
/// Throws UserError naming "place.<field>".
Placement place_by_popularity(std::span<const double> wanted, int64_t devices,
                              const TwoPhaseOptions& options = {});
/// The bounds of those placements.
PlacementBounds two_phase_bounds(int64_t experts, int64_t devices, const TwoPhaseOptions& options);

/// The same with actual counts, phase 2: n_e = devices * count / all.
std::vector<double> wanted_devices(std::span<const int64_t> counts, int64_t devices);

/// One expert per device (experts / devices of them where there are more), as without Lina, with
/// the same slots.
Placement fixed_mapping(int64_t experts, int64_t devices, const TwoPhaseOptions& options = {});

/// The `most` experts with the largest values above 0, largest first; of equal ones the lower.
std::vector<int64_t> top_experts(std::span<const double> values, int64_t most);
std::vector<int64_t> top_experts(std::span<const int64_t> values, int64_t most);

/// What phase 2 compares: the 2k most popular experts, as a list or as a set ("if the two lists are
/// identical" leaves it open).
enum class Compare { kList, kSet };
/// Throws UserError with what is allowed: list, set.
Compare compare_named(std::string_view name);
bool estimate_holds(std::span<const double> wanted, std::span<const int64_t> counts, int64_t k,
                    Compare compare = Compare::kList);

}  // namespace moe
