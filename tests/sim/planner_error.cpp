// Pro-Prophet's performance model (equations 1 to 5) beside the simulated timeline: how far its
// times of all-to-alls, experts, copies and gradients are from what the event engine makes of them.
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "engine/ops/placed.h"
#include "engine/placement/performance_model.h"
#include "engine/routing/workload.h"
#include "tests/sim/routing.h"

namespace moe::test {
namespace {

constexpr int64_t kSteps = 4;

PlanSpec prophet_spec(int64_t nodes, int64_t per_node) {
  const int64_t ranks = nodes * per_node;
  PlanSpec spec = small_spec({stage("prophet", {{"shadows", 8.0}}), stage("prophet_schedule")});
  spec.num_ranks = ranks;
  spec.model.hidden = 1024;
  spec.model.ffn = 2048;
  spec.model.heads = 16;
  spec.model.seq = 256;
  spec.model.experts = ranks;
  spec.model.capacity_factor = 0;  // none
  spec.gate = gate_spec(spec.model);
  spec.cluster = {.name = "3090",
                  .nodes = nodes,
                  .devices_per_node = per_node,
                  .device = {.gemm_flops_per_s = 20e12,
                             .vector_flops_per_s = 35e12,
                             .memory_bytes_per_s = 750e9,
                             .launch_ns = 10'000},
                  .intra = {12e9, 2000},
                  .nic = {10e9, 2500}};
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
  spec.law = std::make_shared<const RoutingLaw>(workload("zipf", {{"s", 1.1}, {"drift", 0.05}}, 1));
  return spec;
}

/// Mean |estimate - simulated| / simulated.
struct Error {
  double sum = 0;
  int64_t n = 0;
  void add(double estimate, double real) {
    if (real <= 0) return;
    sum += std::abs(estimate - real) / real;
    ++n;
  }
  double mean() const { return n > 0 ? sum / static_cast<double>(n) : 0; }
};

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// The time on the wire of a collective, and that of the busiest rank of the experts' ops.
std::map<std::string, double> simulated_s(const Plan& plan, const Timeline& timeline,
                                          int32_t layer) {
  std::map<std::string, Nanoseconds> longest;
  std::map<int32_t, Nanoseconds> forward;
  for (const Span& span : timeline.spans) {
    const Op& op = plan.graph.op(span.op);
    if (op.layer != layer) continue;
    const std::string kind = plan.graph.def(op).name;
    const Nanoseconds ns = span.end - span.begin;
    const bool experts = op.segment == Segment::kExpert && op.phase == Phase::kForward;
    if (experts && plan.graph.def(op).lane == LaneKind::kCompute) forward[span.rank] += ns;
    if (plan.graph.def(op).lane == LaneKind::kComm) longest[kind] = std::max(longest[kind], ns);
  }
  for (const auto& [rank, ns] : forward) longest["experts"] = std::max(longest["experts"], ns);
  std::map<std::string, double> out;
  for (const auto& [kind, ns] : longest) out[kind] = seconds(ns);
  return out;
}

int64_t copies_of(const Placement& placement) {
  int64_t copies = 0;
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    const auto holders = static_cast<int64_t>(placement.holders(e).size());
    if (holders > 1) copies += holders;
  }
  return copies;
}

std::map<std::string, Error> errors_of(const PlanSpec& spec) {
  const auto plan = make_plan(spec);
  RunOptions options;
  options.steps = kSteps;
  const RunResult result = make_simulator()->run(*plan, options);
  std::map<std::string, Error> errors;
  for (const OpId id : ops_of(plan->graph, "place")) {
    const Op& op = plan->graph.op(id);
    const PlaceRates rates = ops::place_rates(op);
    for (int64_t step = 1; step < kSteps; ++step) {
      const auto layer = attr_int(op, "layer_number");
      const auto s = static_cast<size_t>(step);
      const PlacementRecord& record = result.placements[s][static_cast<size_t>(layer)];
      const Placement placement = Placement::decode(record.bounds, record.in_force);
      const Loads loads = spec.law->loads({.step = step,
                                           .layer = layer,
                                           .ranks = spec.num_ranks,
                                           .tokens = 1024,
                                           .experts = spec.model.experts,
                                           .k = 1});
      const DeviceLoads devices = device_loads(placement, loads);
      const auto real = simulated_s(*plan, result.timelines[s], op.layer);
      errors["a2a"].add(a2a_s(devices, rates), real.at("all_to_all"));
      errors["experts"].add(fec_s(devices, rates), real.at("experts"));
      const int64_t copies = copies_of(placement);
      if (copies == 0) continue;
      errors["trans"].add(trans_s(copies, spec.num_ranks, rates), real.at("copy_experts"));
      errors["agg"].add(agg_s(copies, spec.num_ranks, rates), real.at("return_gradients"));
    }
  }
  return errors;
}

TEST_CASE("the planner's model of a layer is near the simulated timeline, op by op") {
  for (const int64_t nodes : {4, 8}) {
    for (const int64_t per_node : {1, 4}) {
      auto errors = errors_of(prophet_spec(nodes, per_node));
      CAPTURE(nodes, per_node, errors["a2a"].mean(), errors["experts"].mean(),
              errors["trans"].mean(), errors["agg"].mean());
      // Of figure 13, which has below 5%. Where devices share a NIC, equation (1) has no B for all
      // shares of it.
      CHECK(errors["a2a"].mean() < (per_node == 1 ? 0.05 : 0.3));
      for (const char* kind : {"experts", "trans", "agg"}) CHECK(errors[kind].mean() < 0.05);
      CHECK(errors["a2a"].n > 0);
      CHECK(errors["trans"].n > 0);
    }
  }
}

}  // namespace
}  // namespace moe::test
