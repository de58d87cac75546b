// Pro-Prophet's planner (arXiv 2411.10003, algorithm 1): a greedy search for the few heavy experts
// that are copied to other devices for one step, judged by the performance model.
// Never slower, by that model, than no copies. The paper has one expert on each device; with
// several the next one is the heaviest of the heaviest device's that is not selected yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/placement/performance_model.h"

namespace moe {

struct ProphetOptions {
  static constexpr int64_t kAuto = -1;
  double alpha = 1;   // of (7): the search ends at max H - min H < alpha * mean of H
  int64_t n = kAuto;  // devices that go without a selected expert, those with the fewest inputs for
                      // it, never its owner; kAuto: for each expert those without any
  TimeEquation equation = TimeEquation::kHidden;
  int64_t most = int64_t{1} << 20;  // selected experts
};

/// An expert and the devices that get a copy, ascending, without its owner.
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

/// owners: [experts], devices from 0. Rows of a device that holds an expert stay there, all others
/// go to the owner (Sharing::kLocal). Ties go to the lower number. O(E D) to read the loads, then
/// O(D + E) a selected expert.
/// Requires: rates as check() wants them; loads of as many sources as devices, not negative.
/// Throws UserError: an owner out of range, n not kAuto nor 0 to devices - 1, alpha negative.
ProphetPlan plan_prophet(const ExpertCounts& loads, std::span<const int64_t> owners,
                         const PlacementRates& rates, const ProphetOptions& options);

/// Adds a plan's copies to a placement: the q-th selected expert takes shadow slot q of each
/// device.
void add_copies(const std::vector<Selected>& selected, Placement& placement);

}  // namespace moe
