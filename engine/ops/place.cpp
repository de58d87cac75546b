// place computes the next placement of a layer from its loads; commit makes it the current one.
#include <algorithm>

#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/placement/policy.h"

namespace moe::ops {
namespace {

constexpr std::string_view kOption = "option_";

std::vector<TensorSpec> infer_placement(const Graph& g, const Op& op) {
  const PlacementBounds bounds = bounds_of(op);
  expect_index(g, op, 0, {g.num_ranks, bounds.experts});
  expect_placement(g, op, 1, bounds);
  expect_attr(op, "every", 1);
  if (attr_string(op, "policy").empty()) {
    throw user_error(
        "op '{}' (place): attribute 'policy' is absent; it must name a placement policy", op.name);
  }
  return {{{Placement::code_size(bounds)}, DType::kI32}};
}

// Every step is charged an equal share of a plan.
Work work_placement(const Graph& g, const Op& op, const WorkContext&) {
  const auto every = static_cast<double>(attr_int(op, "every", 1));
  return {.bytes = io_bytes(g, op), .seconds = attr_double(op, "plan_s") / every};
}

constexpr auto run_placement = []<class T>(const KernelCall<T>& c) {
  const auto codes = static_cast<size_t>(num_elements(c.out_shape(0)));
  const auto keep = [&] { std::copy_n(c.in_i32(1), codes, c.out_i32(0)); };
  if (c.rank.step % attr_int(c.op, "every", 1) != 0) return keep();
  const Placement now = placement_in(c, 1);
  ExpertCounts all(c.in_shape(0)[0], now.bounds().experts);
  std::copy_n(c.in_i32(0), all.rows.size(), all.rows.begin());
  const ExpertCounts loads = mean_of_groups(all, group_of(c.graph, c.op));
  const PlaceInput input = {.step = c.rank.step,
                            .layer = attr_int(c.op, "layer_number"),
                            .loads = loads,
                            .now = now,
                            .rates = placement_rates(c.op)};
  const auto builtin = [&] {
    const PlacementPolicy& policy = builtin_policy(attr_string(c.op, "policy"));
    return policy.place(input, resolved(policy, place_options(c.op)));
  };
  const Placement next = c.rank.place != nullptr ? (*c.rank.place)(input) : builtin();
  std::copy(next.codes().begin(), next.codes().end(), c.out_i32(0));
};

std::vector<TensorSpec> infer_commit(const Graph& g, const Op& op) {
  expect_index(g, op, 0, {kAny});
  expect_index(g, op, 1, shape(g, op, 0));
  return {};
}

constexpr auto run_commit = []<class T>(const KernelCall<T>& c) {
  std::copy_n(c.in_i32(0), num_elements(c.in_shape(0)), static_cast<int32_t*>(c.inputs[1]));
};

}  // namespace

PlacementRates placement_rates(const Op& op) {
  return {.input_bytes = attr_double(op, "input_bytes"),
          .expert_bytes = attr_double(op, "expert_bytes"),
          .state_bytes = attr_double(op, "state_bytes"),
          .a2a_bytes_per_s = attr_double(op, "a2a_bytes_per_s"),
          .copy_bytes_per_s = attr_double(op, "copy_bytes_per_s"),
          .inputs_per_s = attr_double(op, "inputs_per_s"),
          .forward_other_s = attr_double(op, "fnec_s"),
          .backward_other_s = attr_double(op, "bnec_s"),
          .scatter_share = attr_double(op, "scatter_share"),
          .scatter_group = attr_int(op, "scatter_group", 1)};
}

Attrs rate_attrs(const PlacementRates& rates) {
  return {{"input_bytes", rates.input_bytes},
          {"expert_bytes", rates.expert_bytes},
          {"state_bytes", rates.state_bytes},
          {"a2a_bytes_per_s", rates.a2a_bytes_per_s},
          {"copy_bytes_per_s", rates.copy_bytes_per_s},
          {"inputs_per_s", rates.inputs_per_s},
          {"fnec_s", rates.forward_other_s},
          {"bnec_s", rates.backward_other_s},
          {"scatter_share", rates.scatter_share},
          {"scatter_group", rates.scatter_group}};
}

PolicyOptions place_options(const Op& op) {
  PolicyOptions options;
  for (const auto& [name, value] : op.attrs) {
    const double* const number = std::get_if<double>(&value);
    if (number != nullptr && name.starts_with(kOption)) {
      options[name.substr(kOption.size())] = *number;
    }
  }
  return options;
}

Attrs option_attrs(const PolicyOptions& options) {
  Attrs attrs;
  for (const auto& [name, value] : options) attrs[std::string(kOption) + name] = value;
  return attrs;
}

const OpDef kPlace = {
    .name = "place",
    .doc =
        "computes the next placement with the policy of attr policy, once per attr every steps, "
        "from the mean loads of all groups, which all take it; attrs group, stride",
    .moe = MoeOp::kPlace,
    .inputs = {{"loads", Role::kLoads}, {"placement", Role::kPlacement}},
    .outputs = {{"next", Role::kNextPlacement}},
    .infer = infer_placement,
    .work = work_placement,
    .gradient = no_gradient,
    .run = wide_types(run_placement),
    .on_host = always};

const OpDef kCommit = {.name = "commit",
                       .doc = "makes the next placement the current one",
                       .inputs = {{"next", Role::kNextPlacement}, {"placement", Role::kPlacement}},
                       .infer = infer_commit,
                       .work = work_moves,
                       .gradient = no_gradient,
                       .mutates = {1},
                       .run = wide_types(run_commit),
                       .on_host = always};

}  // namespace moe::ops
