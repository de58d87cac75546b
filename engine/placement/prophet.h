// Pro-Prophet's planner (arXiv 2411.10003, algorithm 1): a greedy search for the few heavy experts
// that are copied to other devices for one step, judged by performance_model.h. By that model the
// result is never slower than without copies. The paper has one expert per device; with several,
// the next candidate is the heaviest untried expert of the heaviest device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/placement/performance_model.h"

namespace moe {

struct ProphetOptions {
  static constexpr int64_t kAuto = -1;
  // Of equation (7): the search ends when max H - min H < alpha * mean of H, where H are the inputs
  // that each device computes.
  double alpha = 1;
  // Number of devices without a copy of a selected expert: those with the fewest inputs for it,
  // never its owner. kAuto: for each expert the number of devices without any inputs for it.
  int64_t n = kAuto;
  TimeEquation equation = TimeEquation::kHidden;
  std::optional<double> experts_before_s = {};  // as in PlaceInput, for kHidden
  int64_t most = int64_t{1} << 20;              // the most experts to select
};

/// An expert and the devices that get a copy of it, ascending, without its owner.
struct Selected {
  int64_t expert = 0;
  std::vector<int64_t> devices;
  bool operator==(const Selected&) const = default;
};

struct ProphetPlan {
  std::vector<Selected> selected;  // in the order of the search, heaviest first
  double time_s = 0, time_without_s = 0;
  DeviceLoads loads, loads_without;
};

/// Runs the search. owners: [experts], devices from 0. Rows of a device that holds their expert
/// stay there, all others go to the owner (Sharing::kLocal). Ties go to the lower number. Takes
/// O(E D) to read the loads, then O(D + E) per selected expert. Requires: rates that pass check();
/// loads that are not negative, with as many sources as devices. Throws UserError for an owner out
/// of range, for n other than kAuto or 0 to devices - 1, and for a negative alpha.
ProphetPlan plan_prophet(const ExpertCounts& loads, std::span<const int64_t> owners,
                         const PlacementRates& rates, const ProphetOptions& options);

/// Adds a plan's copies to a placement: the q-th selected expert takes shadow slot q of each
/// device.
void add_copies(const std::vector<Selected>& selected, Placement& placement);

}  // namespace moe
