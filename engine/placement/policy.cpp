#include "engine/placement/policy.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {

const std::vector<PlacementPolicy>& builtin_policies() {
  static const std::vector<PlacementPolicy> policies = {
      {"fixed", "the placement in force stays",
       [](const PlaceInput& input, const PolicyOptions&) { return input.now; }},
  };
  return policies;
}

const PlacementPolicy& builtin_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const PlacementPolicy& policy : builtin_policies()) {
    if (policy.name == name) return policy;
    names.emplace_back(policy.name);
  }
  throw UserError(unknown_name("placement policy", name, std::move(names)));
}

}  // namespace moe
