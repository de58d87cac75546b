#include "engine/placement/policy.h"

#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {

const PlacementPolicy& builtin_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const PlacementPolicy& policy : builtin_policies()) {
    if (policy.name == name) return policy;
    names.emplace_back(policy.name);
  }
  throw UserError(unknown_name("placement policy", name, std::move(names)));
}

Placement ask_policy(const PlacementFunction& policy, const std::string& name, int64_t rank,
                     const PlaceInput& input) {
  const auto text = [&](const std::exception& error) {
    return fmt::format("placement '{}', rank {}, step {}, layer {}: {}",
                       name.substr(0, name.find('@')), rank, input.step, input.layer, error.what());
  };
  try {
    Placement next = policy(input);
    if (next.bounds() != input.now.bounds())
      throw user_error(
          "the policy returned a placement with other bounds than the plan's; return one made from "
          "the current placement that it gets");
    next.check();
    return next;
  } catch (const UserError& error) {
    throw UserError(text(error));
  } catch (const RunError& error) {
    throw RunError(text(error));
  }
}

PolicyOptions resolved(const PlacementPolicy& policy, const PolicyOptions& given) {
  return resolve_numbers(policy.name, policy.options, given);
}

}  // namespace moe
