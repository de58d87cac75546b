#include "engine/placement/builtin.h"

#include <algorithm>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/placement/performance_model.h"
#include "engine/placement/policies.h"

namespace moe {

const std::vector<PlacementPolicy>& builtin_policies() {
  static const std::vector<PlacementPolicy> policies = [] {
    std::vector<PlacementPolicy> all = {
        {.name = "fixed",
         .doc = "keeps the current placement",
         .place = [](const PlaceInput& input, const PolicyOptions&) { return input.now; },
         .defaults = {.pass = "placed"}}};
#define MOE_LIST_POLICY(policy) all.push_back(policy());
    MOE_POLICIES(MOE_LIST_POLICY)
#undef MOE_LIST_POLICY
    check_rows("placement policies", all);
    for (const PlacementPolicy& policy : all) {
      MOE_CHECK(policy.place != nullptr,
                "placement policy '{}': its member `place` is null, but must be a function",
                policy.name);
    }
    return all;
  }();
  return policies;
}

std::vector<int64_t> inputs_of_experts(const ExpertCounts& loads) {
  std::vector<int64_t> inputs(static_cast<size_t>(loads.experts));
  size_t i = 0;
  for (int64_t source = 0; source < loads.sources; ++source) {
    for (int64_t& sum : inputs) sum += loads.rows[i++];
  }
  return inputs;
}

std::vector<int64_t> heaviest_first(const std::vector<int64_t>& inputs) {
  std::vector<int64_t> order(inputs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return inputs[static_cast<size_t>(a)] > inputs[static_cast<size_t>(b)];
  });
  return order;
}

std::vector<int64_t> single_owners(const Placement& placement, const char* who) {
  const PlacementBounds& b = placement.bounds();
  for (int64_t d = 0; d < b.devices; ++d) {
    for (int64_t s = 0; s < b.residents; ++s) {
      const int64_t expert = placement.at(d, s);
      if (expert >= 0 && placement.owner(expert) != d) {
        throw user_error(
            "{}: expert {} has a resident on device {} besides its owner {}; one resident per "
            "expert is allowed",
            who, expert, d, placement.owner(expert));
      }
    }
  }
  return {placement.codes().begin(), placement.codes().begin() + b.experts};
}

Placement without_shadows(const Placement& placement) {
  Placement next = placement;
  next.clear_shadows();
  for (int64_t e = 0; e < next.bounds().experts; ++e) next.set_sharing(e, Sharing::kLocal);
  return next;
}

Placement with_copies_everywhere(const Placement& placement, const std::vector<int64_t>& experts) {
  Placement next = without_shadows(placement);
  for (size_t q = 0; q < experts.size(); ++q) {
    for (int64_t d = 0; d < next.bounds().devices; ++d) {
      if (next.holds(d, experts[q])) continue;
      next.add_shadow(experts[q], d, static_cast<int64_t>(q));
    }
  }
  return next;
}

void require_shadows(const Placement& placement, const char* who) {
  if (placement.bounds().shadows == 0) {
    throw user_error("{}: placement.shadows = 0 leaves no slot for copies, allowed: 1 to {}", who,
                     placement.bounds().experts);
  }
}

bool pays(const PlaceInput& input, const Placement& next, const PolicyOptions& options,
          const char* who) {
  const double horizon = options.at("horizon");
  if (horizon > 0) check(input.rates, who);
  Placement now = input.now;
  now.clear_shadows();
  const auto heaviest = [&](const Placement& placement) {
    const DeviceLoads loads = device_loads(placement, input.loads);
    return static_cast<double>(*std::max_element(loads.computed.begin(), loads.computed.end()));
  };
  const double before = heaviest(now), after = heaviest(next);
  if (!(after < before && after <= (1 - options.at("keep")) * before)) return false;
  if (horizon == 0) return true;
  const auto time_s = [&](const Placement& placement) {
    return placement_s(TimeEquation::kBlocking, placement, input.loads, input.rates);
  };
  return break_even_steps(move_s(now, next, input.rates), time_s(now) - time_s(next)) <= horizon;
}

std::vector<OptionSpec> paying_options() {
  OptionSpec horizon = integer_option(
      "horizon", 0, 0, 1e9,
      "steps within which a move must pay according to the performance model; 0: any number");
  horizon.reads = Reads::kRates;
  return {number_option(
              "keep", 0.05, 0, 1,
              "the placement changes only if the heaviest device then computes this fraction less"),
          std::move(horizon)};
}

}  // namespace moe
