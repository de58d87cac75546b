// Lina's two-phase allocation of devices to the experts of one MoE layer in inference (USENIX ATC
// 2023, section 5.2): phase 1 places experts by their estimated popularity before the gate; phase 2
// compares that with the gate's choices and places again when they differ. Pure functions. A
// mapping is a Placement without shadow slots; inference has no optimizer state, so the owner is
// just the first holder. Popularity is estimated in path_profile.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

struct TwoPhaseOptions {
  /// The most experts per device; at least experts / devices (else UserError).
  int64_t cap = 4;
  /// Seed of the random devices for experts without estimated tokens, when no device is free.
  uint64_t seed = 0;
  /// How an expert's rows are shared among its replicas (residents). false: evenly, as in the
  /// paper, so the replica that takes a small remainder gets as much as one with a whole device.
  /// true: in proportion to what phase 1 gave to each (Sharing::kWeighted; not in the paper).
  bool weighted = false;
};

/// Returns the placement of phase 1. wanted: n_e of each expert [experts] (Eq. 1), not negative and
/// at most `devices` in sum.
///  1. An expert with n_e >= 1 takes floor(n_e) whole devices, the largest n_e first.
///  2. Its remainder, and experts with 0 < n_e < 1, go to the other devices, largest first, each to
///     the first device on which all such numbers sum to at most 1, and which has fewer than cap
///     experts; if there is none, to the device with the smallest sum.
///  3. Experts with n_e = 0 are spread evenly over the devices that are still free; if no device
///     is, each goes to a random device with a free slot.
/// When no slot is left for an expert that has none, the expert with most replicas gives one up. A
/// remainder for which no slot is left is omitted, because its expert has whole devices. Ties go to
/// the lower number. Throws UserError naming "place.<field>" for a value that is not allowed.
Placement place_by_popularity(std::span<const double> wanted, int64_t devices,
                              const TwoPhaseOptions& options = {});
/// Returns the bounds of all placements that the functions of this file return.
PlacementBounds two_phase_bounds(int64_t experts, int64_t devices, const TwoPhaseOptions& options);

/// Returns n_e for phase 2, from the gate's choices: devices * count / sum of counts; 0 without
/// any.
std::vector<double> wanted_devices(std::span<const int64_t> counts, int64_t devices);

/// Returns the placement without Lina: one expert per device (experts / devices when there are more
/// experts), with the slots of two_phase_bounds().
Placement fixed_mapping(int64_t experts, int64_t devices, const TwoPhaseOptions& options = {});

/// Returns up to `most` experts with the largest values above 0, largest first; ties: lower number.
std::vector<int64_t> top_experts(std::span<const double> values, int64_t most);
std::vector<int64_t> top_experts(std::span<const int64_t> values, int64_t most);

/// How phase 2 compares the 2k most popular experts by estimate and by count: as lists or as sets
/// (the paper's "if the two lists are identical" leaves this open).
enum class Compare { kList, kSet };
/// Returns the Compare with this name. Throws UserError unless it is "list" or "set".
Compare compare_named(std::string_view name);
bool estimate_holds(std::span<const double> wanted, std::span<const int64_t> counts, int64_t k,
                    Compare compare = Compare::kList);

}  // namespace moe
