#include "engine/placement/two_phase.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

// Tolerance for sums of shares that should be 1.
constexpr double kRounding = 1e-9;
constexpr double kWeightOne = 1 << 16;  // Placement's weight of a whole device

struct Item {
  int64_t expert;
  double weight;
};

/// Sorts the largest first, of equal ones the lower expert first.
void sort_items(std::vector<Item>& items) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.expert < b.expert;
  });
}

class Allocation {
 public:
  Allocation(int64_t experts, int64_t devices, const TwoPhaseOptions& options)
      : options_(options),
        load_(static_cast<size_t>(devices)),
        on_(static_cast<size_t>(devices)),
        holders_(static_cast<size_t>(experts)) {}

  /// Step 1 of place_by_popularity. Returns for step 2 the share of a device that each expert has
  /// not got yet, largest first, without experts that have got all.
  std::vector<Item> give_whole_devices(std::span<const double> wanted) {
    std::vector<Item> experts, rest;
    for (size_t e = 0; e < wanted.size(); ++e) {
      if (wanted[e] > 0) experts.push_back({static_cast<int64_t>(e), wanted[e]});
    }
    sort_items(experts);
    for (const Item& item : experts) {
      const double whole = std::floor(item.weight + kRounding);
      double given = 0;
      for (; given < whole && opened_ < devices(); ++given) put(item.expert, opened_++, 1);
      const double left = item.weight - given;
      if (given == 0 || left > kRounding) rest.push_back({item.expert, left});
    }
    whole_ = opened_;
    sort_items(rest);
    return rest;
  }

  /// Step 2 of place_by_popularity.
  void pack(const std::vector<Item>& items) {
    for (const Item& item : items) {
      int64_t device = whole_;
      while (device < opened_ && (full(device) || load(device) + item.weight > 1 + kRounding)) {
        ++device;
      }
      if (device == devices()) device = least_loaded(item.expert);
      if (device < 0 && !holders(item.expert).empty()) continue;
      if (device < 0) device = take_slot();
      opened_ = std::max(opened_, device + 1);
      put(item.expert, device, item.weight);
    }
  }

  /// Step 3 of place_by_popularity.
  void spread(std::span<const double> wanted) {
    const int64_t first_free = opened_, free = devices() - opened_;
    int64_t next = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] > 0) continue;
      const auto expert = static_cast<int64_t>(i);
      int64_t device = -1;
      if (next < free * options_.cap) {
        device = first_free + next++ % free;
      } else {
        device = random_device(expert);
      }
      put(expert, device < 0 ? take_slot() : device, 0);
    }
  }

  Placement placement(const PlacementBounds& bounds) const {
    std::vector<int32_t> codes(static_cast<size_t>(Placement::code_size(bounds)), -1);
    const auto at = [](int64_t i) { return static_cast<size_t>(i); };
    const int64_t sharings = bounds.experts + bounds.devices * bounds.slots();
    std::fill(codes.begin() + sharings, codes.end(), 0);
    for (int64_t e = 0; e < bounds.experts; ++e) {
      const std::vector<int64_t>& devices_of = holders(e);
      codes[at(e)] = static_cast<int32_t>(*std::min_element(devices_of.begin(), devices_of.end()));
      codes[at(sharings + e)] = static_cast<int32_t>(Sharing::kEven);
    }
    for (int64_t d = 0; d < bounds.devices; ++d) {
      int64_t slot = bounds.experts + d * bounds.slots();
      for (const int64_t expert : on(d)) codes[at(slot++)] = static_cast<int32_t>(expert);
    }
    Placement placement = Placement::decode(bounds, codes);
    if (options_.weighted) set_weights(placement);
    return placement;
  }

 private:
  int64_t devices() const { return static_cast<int64_t>(on_.size()); }
  double load(int64_t device) const { return load_[static_cast<size_t>(device)]; }
  const std::vector<int64_t>& on(int64_t device) const { return on_[static_cast<size_t>(device)]; }
  const std::vector<int64_t>& holders(int64_t expert) const {
    return holders_[static_cast<size_t>(expert)];
  }
  bool full(int64_t device) const {
    return static_cast<int64_t>(on(device).size()) >= options_.cap;
  }

  void put(int64_t expert, int64_t device, double weight) {
    load_[static_cast<size_t>(device)] += weight;
    on_[static_cast<size_t>(device)].push_back(expert);
    holders_[static_cast<size_t>(expert)].push_back(device);
    given_[{expert, device}] = weight;
  }

  void set_weights(Placement& placement) const {
    for (const auto& [at, weight] : given_) {
      const auto [expert, device] = at;
      const int64_t slot = placement.slot_of(expert, device);
      if (slot < 0) continue;  // take_slot() removed this replica
      const int64_t units = std::max<int64_t>(1, std::llround(weight * kWeightOne));
      for (int64_t source = 0; source < devices(); ++source) {
        placement.set_weight(source, device, slot, units);
      }
      placement.set_sharing(expert, Sharing::kWeighted);
    }
  }

  /// Returns the least loaded device with a free slot and without the expert; -1 if none.
  int64_t least_loaded(int64_t expert) const {
    int64_t best = -1;
    for (int64_t d = 0; d < devices(); ++d) {
      const bool holds = std::find(on(d).begin(), on(d).end(), expert) != on(d).end();
      if (!full(d) && !holds && (best < 0 || load(d) < load(best))) best = d;
    }
    return best;
  }

  int64_t random_device(int64_t expert) const {
    std::vector<int64_t> some;
    for (int64_t d = 0; d < devices(); ++d) {
      if (!full(d)) some.push_back(d);
    }
    if (some.empty()) return -1;
    const uint64_t bits = random24(static_cast<uint64_t>(expert), options_.seed);
    return some[bits * some.size() >> 24];
  }

  /// Removes a replica of the expert with the most replicas, and returns the device whose slot is
  /// free then. That expert has at least two: all slots are in use, an expert has none, and experts
  /// <= cap * devices.
  int64_t take_slot() {
    size_t most = 0;
    for (size_t e = 1; e < holders_.size(); ++e) {
      if (holders_[e].size() > holders_[most].size()) most = e;
    }
    MOE_CHECK(
        holders_[most].size() > 1,
        "place: a slot can be freed only if an expert has at least 2 residents; expert {} has the "
        "most: {}",
        most, holders_[most].size());
    const int64_t device = holders_[most].back();
    holders_[most].pop_back();
    std::vector<int64_t>& there = on_[static_cast<size_t>(device)];
    there.erase(std::find(there.begin(), there.end(), static_cast<int64_t>(most)));
    return device;
  }

  TwoPhaseOptions options_;
  // Devices [0, whole_) hold one expert each that needs a whole device; devices from opened_ on
  // hold nothing yet.
  int64_t whole_ = 0, opened_ = 0;
  std::vector<double> load_;                   // [devices]
  std::vector<std::vector<int64_t>> on_;       // [devices] experts
  std::vector<std::vector<int64_t>> holders_;  // [experts] devices
  // Share of a device that each (expert, device) got.
  std::map<std::pair<int64_t, int64_t>, double> given_;
};

void check_wanted(std::span<const double> wanted, int64_t devices) {
  double sum = 0;
  for (size_t e = 0; e < wanted.size(); ++e) {
    if (!(wanted[e] >= 0) || std::isinf(wanted[e])) {
      throw user_error("place.popularity[{}] = {}, allowed: numbers of at least 0", e, wanted[e]);
    }
    sum += wanted[e];
  }
  const auto most = static_cast<double>(devices);
  if (sum > most * (1 + kRounding)) {
    throw user_error("place.popularity: the sum over experts is {} devices, allowed: at most {}",
                     sum, devices);
  }
}

template <class T>
std::vector<int64_t> largest(std::span<const T> values, int64_t most) {
  std::vector<int64_t> order;
  for (size_t e = 0; e < values.size(); ++e) {
    if (values[e] > 0) order.push_back(static_cast<int64_t>(e));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(most)));
  return order;
}

}  // namespace

PlacementBounds two_phase_bounds(int64_t experts, int64_t devices, const TwoPhaseOptions& options) {
  if (options.cap < 1) throw user_error("place.cap = {}, allowed: at least 1", options.cap);
  if (experts < 1 || devices < 1) {
    throw user_error("place: experts = {} and devices = {}, allowed: at least 1 each", experts,
                     devices);
  }
  if ((experts + devices - 1) / devices > options.cap) {
    throw user_error(
        "place.cap = {} experts per device: {} devices cannot hold {} experts, allowed: at least "
        "{}",
        options.cap, devices, experts, (experts + devices - 1) / devices);
  }
  return {.experts = experts,
          .devices = devices,
          .residents = std::min(options.cap, experts),
          .weighted = options.weighted};
}

Placement place_by_popularity(std::span<const double> wanted, int64_t devices,
                              const TwoPhaseOptions& options) {
  const auto experts = static_cast<int64_t>(wanted.size());
  const PlacementBounds bounds = two_phase_bounds(experts, devices, options);
  check_wanted(wanted, devices);
  Allocation allocation(experts, devices, options);
  allocation.pack(allocation.give_whole_devices(wanted));
  allocation.spread(wanted);
  return allocation.placement(bounds);
}

std::vector<double> wanted_devices(std::span<const int64_t> counts, int64_t devices) {
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<double> wanted(counts.size());
  for (size_t e = 0; e < counts.size() && all > 0; ++e) {
    wanted[e] =
        static_cast<double>(devices) * static_cast<double>(counts[e]) / static_cast<double>(all);
  }
  return wanted;
}

Placement fixed_mapping(int64_t experts, int64_t devices, const TwoPhaseOptions& options) {
  Placement placement(two_phase_bounds(experts, devices, options));
  for (int64_t e = 0; e < experts; ++e) placement.set_sharing(e, Sharing::kEven);
  return placement;
}

std::vector<int64_t> top_experts(std::span<const double> values, int64_t most) {
  return largest(values, most);
}

std::vector<int64_t> top_experts(std::span<const int64_t> values, int64_t most) {
  return largest(values, most);
}

Compare compare_named(std::string_view name) {
  if (name == "list") return Compare::kList;
  if (name == "set") return Compare::kSet;
  throw user_error("compare = '{}', allowed: list, set", name);
}

bool estimate_holds(std::span<const double> wanted, std::span<const int64_t> counts, int64_t k,
                    Compare compare) {
  MOE_CHECK(
      wanted.size() == counts.size(),
      "estimate_holds: {} experts have an estimate, but {} have a count; the numbers must be equal",
      wanted.size(), counts.size());
  std::vector<int64_t> estimated = top_experts(wanted, 2 * k), actual = top_experts(counts, 2 * k);
  if (compare == Compare::kSet) {
    std::sort(estimated.begin(), estimated.end());
    std::sort(actual.begin(), actual.end());
  }
  return estimated == actual;
}

}  // namespace moe
