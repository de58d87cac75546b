#include "engine/placement/ultraep.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/index.h"
#include "engine/placement/builtin.h"
#include "engine/placement/policies.h"
#include "engine/placement/quota.h"

namespace moe {
namespace {

class UltraEpSearch {
 public:
  UltraEpSearch(const ExpertCounts& loads, std::span<const int64_t> owners, int64_t slots,
                const UltraEpOptions& options)
      : load_(inputs_of_experts(loads)),
        slots_(slots),
        options_(options),
        before_(index(loads.sources)) {
    owned_.resize(before_.size());
    for (const int64_t e : heaviest_first(load_)) {
      owned_[index(owners[index(e)])].push_back(e);
      before_[index(owners[index(e)])] += load_[index(e)];
    }
    givers_ = heaviest_first(before_);
  }

  /// Sets `copies` to those with which no device computes more than `threshold` tokens. Returns
  /// whether the greedy choice has found them. even: whether a copy must get an even share.
  bool fits(int64_t threshold, bool even, std::vector<Copied>& copies) {
    copies.clear();
    even_ = even;
    room_.resize(before_.size());
    int64_t balance = 0;
    for (size_t d = 0; d < before_.size(); ++d) {
      room_[d] = threshold - before_[d];
      balance += room_[d];
    }
    if (balance < 0) return false;
    free_.assign(before_.size(), slots_);
    for (const int64_t d : givers_) {
      if (room_[index(d)] >= 0) break;
      int64_t need = -room_[index(d)];
      for (const int64_t e : owned_[index(d)]) {
        need -= give(e, need, copies);
        if (need == 0) break;
      }
      if (need > 0) return false;
    }
    return true;
  }

  int64_t heaviest() const { return before_[index(givers_.front())]; }
  int64_t total() const { return std::accumulate(before_.begin(), before_.end(), int64_t{0}); }

 private:
  /// Gives away up to `need` tokens of the expert; returns how many.
  int64_t give(int64_t expert, int64_t need, std::vector<Copied>& copies) {
    int64_t given = 0;
    const size_t first = copies.size();
    while (given < need && given < load_[index(expert)]) {
      const int64_t wanted = std::min(need, load_[index(expert)]) - given;
      int64_t taker = -1, takers = 0;
      for (size_t d = 0; d < room_.size(); ++d) {
        if (room_[d] <= 0 || free_[d] == 0 || holds(copies, first, d)) continue;
        ++takers;
        if (taker < 0 || better(room_[d], room_[index(taker)], wanted))
          taker = static_cast<int64_t>(d);
      }
      if (takers == 0) break;
      const int64_t tokens = std::min(wanted, room_[index(taker)]);
      const int64_t share = even_ ? (need - given + takers - 1) / takers : 1;
      if (tokens < std::max(share, options_.min_tokens)) break;
      copies.push_back({expert, taker, tokens});
      room_[index(taker)] -= tokens;
      --free_[index(taker)];
      given += tokens;
    }
    return given;
  }

  /// Returns whether a device with so much room is to be preferred to another for so many tokens.
  bool better(int64_t room, int64_t other, int64_t wanted) const {
    if (options_.best_fit && other >= wanted) return wanted <= room && room < other;
    return room > other;
  }

  // The owner has no room, and only the copies from `first` on are of the same expert.
  static bool holds(const std::vector<Copied>& copies, size_t first, size_t device) {
    for (size_t i = first; i < copies.size(); ++i) {
      if (index(copies[i].device) == device) return true;
    }
    return false;
  }

  std::vector<int64_t> load_;  // [experts]
  int64_t slots_;
  UltraEpOptions options_;
  bool even_ = false;
  std::vector<int64_t> before_;  // [devices], tokens without copies
  std::vector<std::vector<int64_t>> owned_;
  std::vector<int64_t> givers_;
  std::vector<int64_t> room_, free_;  // [devices], of the threshold that is tried
};

Placement place_ultraep(const PlaceInput& input, const PolicyOptions& options) {
  require_shadows(input.now, "ultraep");
  Placement next = without_shadows(input.now);
  const std::vector<int64_t> owners = single_owners(next, "ultraep");
  const UltraEpPlan plan =
      plan_ultraep(input.loads, owners, next.bounds().shadows,
                   {.slack = options.at("slack"),
                    .min_tokens = static_cast<int64_t>(options.at("min_tokens")),
                    .best_fit = options.at("best_fit") != 0});
  const std::vector<int64_t> inputs = inputs_of_experts(input.loads);
  for (size_t i = 0; i < plan.copies.size();) {
    const int64_t expert = plan.copies[i].expert;
    std::vector<Quota> quotas = {{owners[index(expert)], inputs[index(expert)]}};
    for (; i < plan.copies.size() && plan.copies[i].expert == expert; ++i) {
      next.add_shadow(expert, plan.copies[i].device);
      quotas.push_back({plan.copies[i].device, plan.copies[i].tokens});
      quotas.front().tokens -= plan.copies[i].tokens;
    }
    share_by_quota(next, expert, input.loads, quotas);
  }
  return next;
}

}  // namespace

UltraEpPlan plan_ultraep(const ExpertCounts& loads, std::span<const int64_t> owners, int64_t slots,
                         const UltraEpOptions& options) {
  UltraEpSearch search(loads, owners, slots, options);
  const int64_t mean = (search.total() + loads.sources - 1) / loads.sources;
  const int64_t most = search.heaviest(), step = std::max<int64_t>(1, (most + 99) / 100);
  std::vector<Copied> copies;
  const double first = static_cast<double>(search.total()) / static_cast<double>(loads.sources);
  int64_t threshold =
      std::max<int64_t>(mean, std::llround(std::floor(first * (1 + options.slack) + 1e-6)));
  for (int tries = 0; tries < 3; ++tries) {
    if (search.fits(threshold, true, copies)) return {copies, std::min(threshold, most)};
    threshold = std::min(most, threshold + step);
  }
  UltraEpPlan plan = {{}, most};
  int64_t fails = mean - 1;
  while (plan.threshold - fails > 1) {
    const int64_t middle = fails + (plan.threshold - fails) / 2;
    if (search.fits(middle, false, copies)) {
      plan = {copies, middle};
    } else {
      fails = middle;
    }
  }
  return plan;
}

PlacementPolicy ultraep_policy() {
  return {
      "ultraep",
      "UltraEP: copies and quotas of tokens from the exact load, so that no device computes more "
      "than a threshold near the mean",
      place_ultraep,
      {number_option("slack", 0.01, 0, 1,
                     "the first threshold of a device's tokens that is tried is so much above the "
                     "mean, as a fraction of it"),
       integer_option("min_tokens", 1, 1, 1e12, "fewest tokens that a copy may get"),
       integer_option("best_fit", 1, 0, 1,
                      "1: tokens go to the device with the least room that suffices; 0: to that "
                      "with the most room, as in the public code")},
      false,
      Reads::kNothing,
      // Measured on one CPU core for 256 experts on 64 devices.
      {.now = true, .shadows = 2, .weighted = true, .plan_us = 90}};
}

}  // namespace moe
