// Loads and rates for tests of planners, and the search through every set of copies that
// greedy planners are held against.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/base/rng.h"
#include "engine/placement/performance_model.h"

namespace moe::test {

/// Skewed: the square of a draw per expert, times a draw per device; some devices choose nothing.
inline ExpertCounts skewed_loads(int64_t devices, int64_t experts, uint64_t seed) {
  Rng rng(seed);
  ExpertCounts loads(devices, experts);
  for (int64_t e = 0; e < experts; ++e) {
    const double heavy = rng.uniform();
    for (int64_t d = 0; d < devices; ++d) {
      const double draw = rng.uniform();
      if (draw > 0.2) loads.at(d, e) = static_cast<int64_t>(400 * heavy * heavy * draw);
    }
  }
  return loads;
}

/// Rates of seconds near 1, whose parts weigh alike or not at all.
inline PlacementRates random_rates(uint64_t seed) {
  Rng rng(seed + 77);
  PlacementRates r{.input_bytes = 1, .expert_bytes = 1 + 600 * rng.uniform(), .state_bytes = 1000};
  r.a2a_bytes_per_s = 50 + 500 * rng.uniform();
  r.copy_bytes_per_s = rng.below(2) == 0 ? 0 : 50 + 1000 * rng.uniform();
  r.inputs_per_s = 50 + 500 * rng.uniform();
  r.forward_other_s = rng.uniform(), r.backward_other_s = 2 * r.forward_other_s;
  return r;
}

/// As random_rates(), in half of the cases with scatters of owners.
inline PlacementRates scattering_rates(uint64_t seed) {
  PlacementRates r = random_rates(seed);
  Rng rng(seed + 1001);
  if (rng.below(2) == 0) r.scatter_share = rng.uniform(), r.scatter_group = 1 + rng.below(3);
  return r;
}

/// As expert parallelism has them: experts in order, as many on each device.
inline std::vector<int64_t> owners_in_order(int64_t experts, int64_t devices) {
  const int64_t each = (experts + devices - 1) / devices;
  const Placement p({.experts = experts, .devices = devices, .residents = each});
  return {p.codes().begin(), p.codes().begin() + experts};
}

/// The least time over all sets of (expert, device) copies, an expert with copies on c devices
/// counted as c + 1 copies: n of the paper for each expert on its own.
inline double exhaustive_s(const ExpertCounts& loads, const std::vector<int64_t>& owners,
                           const PlacementRates& rates, TimeEquation equation) {
  struct Pair {
    int64_t expert, device;
  };
  std::vector<Pair> pairs;
  for (int64_t e = 0; e < loads.experts; ++e) {
    for (int64_t d = 0; d < loads.sources; ++d) {
      if (owners[static_cast<size_t>(e)] != d) pairs.push_back({e, d});
    }
  }
  double least = -1;
  for (uint64_t set = 0; set < uint64_t{1} << pairs.size(); ++set) {
    DeviceLoads now{std::vector<int64_t>(static_cast<size_t>(loads.sources)), {}};
    now.received = now.computed;
    CopyCount copies(loads.sources, rates);
    std::vector<bool> selected(static_cast<size_t>(loads.experts));
    for (int64_t e = 0; e < loads.experts; ++e) {
      const int64_t owner = owners[static_cast<size_t>(e)];
      now.computed[static_cast<size_t>(owner)] += loads.at(owner, e);
    }
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto [e, d] = pairs[i];
      const bool copied = (set >> i & 1) != 0;
      const auto owner = static_cast<size_t>(owners[static_cast<size_t>(e)]);
      now.computed[copied ? static_cast<size_t>(d) : owner] += loads.at(d, e);
      if (!copied) now.received[owner] += loads.at(d, e);
      if (copied)
        copies.add(owners[static_cast<size_t>(e)], selected[static_cast<size_t>(e)] ? 1 : 2);
      if (copied) selected[static_cast<size_t>(e)] = true;
    }
    const double time_s = layer_s(equation, now, copies.weighted(), rates);
    if (least < 0 || time_s < least) least = time_s;
  }
  return least;
}

}  // namespace moe::test
