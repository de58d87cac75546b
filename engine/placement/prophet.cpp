#include "engine/placement/prophet.h"

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/placement/builtin.h"
#include "engine/placement/policies.h"

namespace moe {
namespace {

/// The state of the search: the inputs that each device computes and receives with the copies so
/// far, and the experts of each device that are still to be tried.
class ProphetSearch {
 public:
  ProphetSearch(const ExpertCounts& loads, std::span<const int64_t> owners,
                const ProphetOptions& options)
      : loads_(loads), owners_(owners), options_(options), column_(index(loads.sources)) {
    count_inputs();
    sort_experts();
  }

  const DeviceLoads& now() const { return now_; }
  /// Returns the heaviest untried expert of the heaviest device; -1 when there is none.
  int64_t next_expert() {
    const auto heaviest = std::max_element(now_.computed.begin(), now_.computed.end());
    const auto device = static_cast<size_t>(heaviest - now_.computed.begin());
    if (cursor_[device] == end_[device]) return -1;
    return order_[cursor_[device]++];
  }

  /// Returns the devices other than the owner that shall get a copy.
  std::vector<int64_t> devices_for(int64_t expert) {
    std::vector<int64_t> devices;
    for (int64_t d = 0; d < loads_.sources; ++d) {
      column_[index(d)] = loads_.at(d, expert);
      if (d == owners_[index(expert)]) continue;
      if (options_.n != ProphetOptions::kAuto || column_[index(d)] > 0) devices.push_back(d);
    }
    if (options_.n <= 0) return devices;
    // Removes the n devices with the fewest inputs (BottomK) and restores the order of the others.
    const auto rest = devices.begin() + options_.n;
    std::nth_element(devices.begin(), rest - 1, devices.end(), [&](int64_t a, int64_t b) {
      return std::pair(column_[index(a)], a) < std::pair(column_[index(b)], b);
    });
    devices.erase(devices.begin(), rest);
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  /// Accounts for the inputs that stay on their device because of these copies; returns how many.
  /// Requires: selected.expert is the argument of the last devices_for().
  int64_t copy(const Selected& selected) {
    const int64_t owner = owners_[index(selected.expert)];
    int64_t moved = 0;
    for (const int64_t device : selected.devices) {
      const int64_t inputs = column_[index(device)];
      now_.computed[index(device)] += inputs;
      moved += inputs;
    }
    now_.computed[index(owner)] -= moved;
    now_.received[index(owner)] -= moved;
    return moved;
  }

 private:
  void count_inputs() {
    now_.computed.assign(index(loads_.sources), 0);
    now_.received = now_.computed;
    of_expert_.assign(index(loads_.experts), 0);
    const int64_t* row = loads_.rows.data();
    for (int64_t source = 0; source < loads_.sources; ++source, row += loads_.experts) {
      for (int64_t e = 0; e < loads_.experts; ++e) {
        of_expert_[index(e)] += row[e];
        if (owners_[index(e)] != source) now_.received[index(owners_[index(e)])] += row[e];
      }
    }
    for (int64_t e = 0; e < loads_.experts; ++e) {
      now_.computed[index(owners_[index(e)])] += of_expert_[index(e)];
    }
  }

  void sort_experts() {
    order_.resize(index(loads_.experts));
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
      if (owners_[index(a)] != owners_[index(b)]) return owners_[index(a)] < owners_[index(b)];
      if (of_expert_[index(a)] != of_expert_[index(b)])
        return of_expert_[index(a)] > of_expert_[index(b)];
      return a < b;
    });
    cursor_.assign(index(loads_.sources), 0);
    end_.assign(index(loads_.sources), 0);
    size_t i = 0;
    for (int64_t device = 0; device < loads_.sources; ++device) {
      cursor_[index(device)] = i;
      while (i < order_.size() && owners_[index(order_[i])] == device) ++i;
      end_[index(device)] = i;
    }
  }

  const ExpertCounts& loads_;
  std::span<const int64_t> owners_;
  const ProphetOptions& options_;
  DeviceLoads now_;
  std::vector<int64_t> of_expert_;    // inputs of each expert: [experts]
  std::vector<int64_t> order_;        // experts by owner, heaviest first
  std::vector<size_t> cursor_, end_;  // positions in order_: [devices]
  std::vector<int64_t> column_;       // inputs from each device for the expert of devices_for()
};

void check_input(const ExpertCounts& loads, std::span<const int64_t> owners,
                 const ProphetOptions& options) {
  MOE_CHECK(static_cast<int64_t>(owners.size()) == loads.experts && loads.sources > 0,
            "prophet: {} owners, {} experts and {} source ranks; expected one owner per expert and "
            "at least 1 source rank",
            owners.size(), loads.experts, loads.sources);
  for (const int64_t owner : owners) {
    if (owner < 0 || owner >= loads.sources) {
      throw user_error("prophet: the owner of an expert is device {}, allowed: 0 to {}", owner,
                       loads.sources - 1);
    }
  }
  if (options.n != ProphetOptions::kAuto && (options.n < 0 || options.n >= loads.sources)) {
    throw user_error("prophet.n = {}, allowed: 0 to {}, or -1 (automatic)", options.n,
                     loads.sources - 1);
  }
  if (!(options.alpha >= 0)) {
    throw user_error("prophet.alpha = {}, allowed: a number of at least 0", options.alpha);
  }
}

}  // namespace

ProphetPlan plan_prophet(const ExpertCounts& loads, std::span<const int64_t> owners,
                         const PlacementRates& rates, const ProphetOptions& options) {
  check_input(loads, owners, options);
  ProphetSearch search(loads, owners, options);
  ProphetPlan plan;
  plan.loads = plan.loads_without = search.now();
  CopyCount copies(loads.sources, rates);
  const auto time_now_s = [&] {
    return layer_s(options.equation, search.now(), copies.weighted(), rates,
                   options.experts_before_s);
  };
  plan.time_s = plan.time_without_s = time_now_s();
  size_t count = 0;  // length of the prefix of plan.selected with the least time
  while (static_cast<int64_t>(plan.selected.size()) < options.most &&
         !is_balanced(search.now().computed, options.alpha)) {
    const int64_t expert = search.next_expert();
    if (expert < 0) break;
    Selected selected{expert, search.devices_for(expert)};
    // Copies that would take no inputs only cost time. (The paper's search, with one expert per
    // device, picks the same device again in the next round and ends.)
    if (search.copy(selected) == 0) continue;
    copies.add(owners[index(expert)], static_cast<int64_t>(selected.devices.size()) + 1);
    plan.selected.push_back(std::move(selected));
    const double time_s = time_now_s();
    if (time_s < plan.time_s) {
      plan.time_s = time_s;
      plan.loads = search.now();
      count = plan.selected.size();
    }
  }
  plan.selected.resize(count);
  return plan;
}

void add_copies(const std::vector<Selected>& selected, Placement& placement) {
  for (size_t q = 0; q < selected.size(); ++q) {
    for (const int64_t device : selected[q].devices) {
      placement.add_shadow(selected[q].expert, device, static_cast<int64_t>(q));
    }
  }
}

/// Pro-Prophet's greedy planner (prophet.h): copies few experts to some devices for one step.
PlacementPolicy prophet_policy() {
  const auto place = [](const PlaceInput& input, const PolicyOptions& options) {
    require_shadows(input.now, "prophet");
    check(input.rates, "prophet");
    Placement next = without_shadows(input.now);
    const ProphetOptions how{
        .alpha = options.at("alpha"),
        .n = static_cast<int64_t>(options.at("n")),
        .equation = options.at("hidden") != 0 ? TimeEquation::kHidden : TimeEquation::kBlocking,
        .experts_before_s = input.experts_before_s,
        .most = next.bounds().shadows};
    const std::vector<int64_t> owners = single_owners(next, "prophet");
    add_copies(plan_prophet(input.loads, owners, input.rates, how).selected, next);
    return next;
  };
  return {"prophet",
          "Pro-Prophet: few experts are copied, each to the devices that have inputs for it",
          place,
          {number_option("alpha", 1, 0, 1e6,
                         "the search ends when the most and fewest inputs of a device differ by "
                         "less than this many times their mean (the authors' code: 3)"),
           integer_option(
               "n", ProphetOptions::kAuto, ProphetOptions::kAuto, 1e6,
               "number of devices without a copy, those with the fewest inputs; -1: all without "
               "inputs"),
           integer_option(
               "hidden", 1, 0, 1,
               "1: copies are hidden behind compute (equation 8); 0: they block it (equation 6)")},
          false,
          Reads::kRates,
          {.shadows = 8}};
}

}  // namespace moe
