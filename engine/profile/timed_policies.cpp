#include "engine/profile/timed_policies.h"

#include <cmath>
#include <utility>

#include "engine/base/rng.h"
#include "engine/comm/communicator.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/results/machine_state.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"

namespace moe {
namespace {

/// Inputs and outputs to call a gate with the sizes of an op, with scores as from a softmax.
struct GateTrial {
  explicit GateTrial(const Graph& graph, const Op& op) {
    const bool together = op.attrs.contains("all_capacity");  // else of a rank's tokens
    const Shape& scores_shape = graph.tensor(together ? op.inputs.back() : op.outputs[0]).shape;
    in.tokens = scores_shape[0];
    in.experts = scores_shape[1];
    in.k = attr_int(op, "k", 1);
    in.capacity = attr_int(op, together ? "all_capacity" : "capacity");
    maps.columns = graph.tensor(output_of(graph, op, Role::kExpert)).shape[1];
    Rng rng(1000249);
    scores.resize(static_cast<size_t>(in.tokens * in.experts));
    for (float& s : scores) {
      s = static_cast<float>((0.5 + rng.uniform()) / static_cast<double>(in.experts));
    }
    ids.resize(static_cast<size_t>(in.tokens));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(256));
    in.scores = scores.data();
    in.ids = ids.data();
    maps.tokens = in.tokens;
    maps.experts = in.experts;
    maps.capacity = in.capacity;
    place(expert, maps.expert, in.tokens * maps.columns);
    place(choice_slot, maps.choice_slot, in.tokens * maps.columns);
    place(slot_choice, maps.slot_choice, in.experts * in.capacity);
    place(counts, maps.counts, in.experts);
  }
  GateTrial(const GateTrial&) = delete;
  GateTrial& operator=(const GateTrial&) = delete;

  GateInput in;
  RoutingMaps maps;

 private:
  static void place(std::vector<int32_t>& values, int32_t*& pointer, int64_t n) {
    values.resize(static_cast<size_t>(n));
    pointer = values.data();
  }
  std::vector<float> scores;
  std::vector<int32_t> ids, expert, choice_slot, slot_choice, counts;
};

// Returns samples of the gate's own time plus the median of `rest`, the rest of the op; they are
// disturbed if `rest` is.
Samples time_gate(const Gate& gate, const Graph& graph, const Op& op, Samples rest,
                  const ProfileOptions& options) {
  GateTrial trial(graph, op);
  const Nanoseconds around = median(rest.ns);
  std::vector<Nanoseconds> samples;
  const double slower = options.at_reference ? slower_than_reference() : 1;
  const int64_t until = clock_ns() + static_cast<int64_t>(options.min_time_s * 1e9);
  const auto enough = static_cast<size_t>(options.min_samples);
  while (samples.size() < enough || clock_ns() < until) {
    RoutingBuilder builder(trial.maps);
    const int64_t begin = clock_ns();
    gate.route(trial.in, builder);
    samples.push_back(around + std::llround(static_cast<double>(clock_ns() - begin) / slower));
  }
  rest.ns = std::move(samples);
  return rest;
}

/// Returns samples of the policy's own time plus the median of `rest`, the rest of the op; they are
/// disturbed if `rest` is. A policy that is called every n steps counts 1/n of the time of a call.
Samples time_policy(const PlacementFunction& policy, const Op& op, Samples rest,
                    const ProfileOptions& options) {
  const Nanoseconds around = median(rest.ns);
  const PlacementBounds bounds = ops::bounds_of(op);
  const Placement now(bounds);
  Rng rng(1000257);
  ExpertCounts loads(bounds.devices, bounds.experts);
  for (int64_t& rows : loads.rows) rows = rng.below(256);
  std::vector<Nanoseconds> samples;
  const int64_t every = attr_int(op, "every", 1);
  const double slower = options.at_reference ? slower_than_reference() : 1;
  const int64_t until = clock_ns() + static_cast<int64_t>(options.min_time_s * 1e9);
  const auto enough = static_cast<size_t>(options.min_samples);
  while (samples.size() < enough || clock_ns() < until) {
    const PlaceInput input = {.step = static_cast<int64_t>(samples.size()) * every,
                              .layer = attr_int(op, "layer_number"),
                              .loads = loads,
                              .now = now,
                              .rates = ops::placement_rates(op)};
    LastPlaced last;
    const int64_t begin = clock_ns();
    ask_policy(policy, attr_string(op, "policy"), 0, input, last);
    const double own = static_cast<double>(clock_ns() - begin) / slower;
    samples.push_back(around + std::llround(own / static_cast<double>(every)));
  }
  rest.ns = std::move(samples);
  return rest;
}

}  // namespace

ProfileCost::Measure with_gate(ProfileCost::Measure measure, RankGates gates, std::string name,
                               const ProfileOptions& options) {
  return [measure = std::move(measure), gates = std::move(gates), name = std::move(name), options](
             const Graph& graph, OpId op, const WorkContext& work) {
    const bool is_gate = graph.def(op).moe == MoeOp::kGate;
    if (!is_gate || attr_string(graph.op(op), "gate") != name) return measure(graph, op, work);
    // measure() times the op with a built-in gate, whose own time is only a small part of it.
    return time_gate(gates(0), graph, graph.op(op), measure(graph, op, work), options);
  };
}

ProfileCost::Measure with_policies(ProfileCost::Measure measure, RankPlacements policies,
                                   const ProfileOptions& options) {
  return [measure = std::move(measure), policies = std::move(policies), options](
             const Graph& graph, OpId op, const WorkContext& work) {
    PlacementFunction own;
    if (graph.def(op).moe == MoeOp::kPlace) own = policies(0, attr_string(graph.op(op), "policy"));
    if (!own) return measure(graph, op, work);
    Graph fixed = graph;
    Attrs& attrs = fixed.op(op).attrs;
    for (const auto& [option, value] : ops::option_attrs(ops::place_options(graph.op(op)))) {
      attrs.erase(option);
    }
    attrs["policy"] = std::string("fixed");
    return time_policy(own, graph.op(op), measure(fixed, op, work), options);
  };
}

}  // namespace moe
