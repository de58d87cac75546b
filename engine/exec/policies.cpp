#include "engine/exec/policies.h"

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {

PlacementFunction policy_of(const Op& place, const Policies& policies, int64_t rank,
                            LastPlaced& last, std::string& failure) {
  const std::string name = attr_string(place, "policy");
  PlacementFunction policy;
  if (policies.place) policy = policies.place(rank, name);
  if (!policy) {
    policy = [&built_in = builtin_policy(name), given = ops::place_options(place)](
                 const PlaceInput& input) { return built_in.place(input, given); };
  }
  return [policy = std::move(policy), name, rank, &last, &failure](const PlaceInput& input) {
    if (!failure.empty()) return input.now;
    try {
      return ask_policy(policy, name, rank, input, last);
    } catch (const UserError& error) {
      failure = error.what();
    } catch (const RunError& error) {
      failure = error.what();
    }
    return input.now;
  };
}

PlacementRecord placement_record(const Graph& graph, const Op& place,
                                 const std::function<const void*(TensorId)>& at) {
  const PlacementBounds bounds = ops::bounds_of(place);
  const auto codes = [&](TensorId t) {
    const auto* const x = static_cast<const int32_t*>(at(t));
    return std::vector<int32_t>(x, x + Placement::code_size(bounds));
  };
  const std::vector<int32_t> next = codes(place.outputs[0]);
  const bool now = attr_string(place, "use") == "now";
  return {.layer = place.layer,
          .of_micro_batch = now,
          .micro = place.micro,
          .bounds = bounds,
          .in_force = now ? next : codes(input_of(graph, place, Role::kPlacement)),
          .next = next};
}

}  // namespace moe
