#include "engine/placement/policy.h"

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/placement/performance_model.h"

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
                     PlaceInput input, LastPlaced& last) {
  const auto text = [&](const std::exception& error) {
    return fmt::format("placement '{}', rank {}, step {}, layer {}: {}",
                       name.substr(0, name.find('@')), rank, input.step, input.layer + 1,
                       error.what());
  };
  if (input.layer == 0) input.experts_before_s = 0;
  if (last.step == input.step && last.layer == input.layer - 1) {
    input.experts_before_s = last.experts_s;
  }
  try {
    Placement next = policy(input);
    if (next.bounds() != input.now.bounds())
      throw user_error(
          "the policy returned a placement with other bounds than the plan's; return one made from "
          "the current placement that it gets");
    next.check();
    last = {input.step, input.layer, 0};
    if (input.rates.inputs_per_s > 0) {
      last.experts_s = fec_s(device_loads(next, input.loads), input.rates);
    }
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
