// Pro-Prophet's performance model (equations 1 to 5) beside spans: by hand, from the model itself,
// and simulated, where the error says how far its times of all-to-alls, experts, copies and
// gradients are from what the event engine makes of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <utility>

#include "engine/analysis/planner_error.h"
#include "engine/ops/placed.h"
#include "engine/placement/performance_model.h"
#include "engine/routing/workload.h"
#include "tests/model/gpt2.h"
#include "tests/sim/routing.h"

namespace moe::test {
namespace {

constexpr int64_t kSteps = 4;

PlanSpec prophet_spec(int64_t nodes, int64_t per_node) {
  const int64_t ranks = nodes * per_node;
  PlanSpec spec = small_spec({stage("prophet", {{"shadows", 8.0}}), stage("prophet_schedule")});
  spec.num_ranks = ranks;
  change_model(spec, [&](Gpt2& m) {
    m.hidden = 1024;
    m.ffn = 2048;
    m.heads = 16;
    m.seq = 256;
    m.experts = ranks;
    m.capacity_factor = 0;  // none
    m.rows_bound = 16;      // for the most skewed step
  });
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
  spec.routing =
      std::make_shared<const RoutingModel>(workload("zipf", {{"s", 1.1}, {"drift", 0.05}}, 1));
  return spec;
}

/// The heaviest experts, as many as wanted, to all devices.
PlacementFunction copies_heaviest(int64_t count) {
  return [count](const PlaceInput& input) {
    Placement next = input.now;
    next.clear_shadows();
    std::vector<int64_t> experts(static_cast<size_t>(input.loads.experts));
    std::iota(experts.begin(), experts.end(), 0);
    std::stable_sort(experts.begin(), experts.end(), [&](int64_t a, int64_t b) {
      return input.loads.of_expert(a) > input.loads.of_expert(b);
    });
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t d = 0; d < next.bounds().devices; ++d) {
        const int64_t expert = experts[static_cast<size_t>(i)];
        if (!next.holds(d, expert)) next.add_shadow(expert, d);
      }
    }
    return next;
  };
}

ModelErrors simulated_errors(const PlanSpec& spec, PlacementFunction policy = nullptr) {
  const auto plan = make_plan(spec);
  RunOptions options;
  options.steps = kSteps;
  if (policy) options.policies.place = [policy](int64_t, const std::string&) { return policy; };
  return planner_errors(*plan, make_simulator()->run(*plan, options));
}

const ModelError& of(const ModelErrors& errors, ModelOp op) {
  return errors[static_cast<size_t>(op)];
}

TEST_CASE("the planner's model of a layer is near the simulated timeline, op by op") {
  for (const int64_t nodes : {4, 8}) {
    for (const int64_t per_node : {1, 4}) {
      const ModelErrors errors = simulated_errors(prophet_spec(nodes, per_node));
      const double a2a = of(errors, ModelOp::kA2a).mean;
      CAPTURE(nodes, per_node, a2a);
      // Of figure 13, which has below 5%. Where devices share a NIC, equation (1) has no B for all
      // shares of it.
      CHECK(a2a < (per_node == 1 ? 0.05 : 0.3));
      for (const ModelOp op : {ModelOp::kExperts, ModelOp::kTrans, ModelOp::kAgg}) {
        CAPTURE(name_of(op));
        CHECK(of(errors, op).mean < 0.05);
        CHECK(of(errors, op).count > 0);
      }
    }
  }
}

// The rate of copies is that of one expert, whose owner scatters it. Of several experts the owners
// scatter at the same time, unless they share a NIC. Where every device owns one of the experts,
// none of them has all experts to pass on, which the model does not see.
TEST_CASE("copies of several owners' experts take what the planner's model says") {
  for (const int64_t count : {1, 2, 4}) {
    for (const auto& [nodes, per_node] : {std::pair{4, 1}, {4, 4}, {8, 1}, {8, 4}}) {
      const ModelErrors errors =
          simulated_errors(prophet_spec(nodes, per_node), copies_heaviest(count));
      const double most = count == 1 ? 0.001 : count == nodes * per_node ? 0.25 : 0.1;
      for (const ModelOp op : {ModelOp::kTrans, ModelOp::kAgg}) {
        CAPTURE(nodes, per_node, count, name_of(op), of(errors, op).mean);
        CHECK(of(errors, op).mean < most);
        CHECK(of(errors, op).count > 0);
      }
    }
  }
}

/// 1 ns per byte, 100 ns per input, experts of 1,000 bytes.
constexpr PlacementRates kRates = {.input_bytes = 10,
                                   .expert_bytes = 1000,
                                   .a2a_bytes_per_s = 1e9,
                                   .copy_bytes_per_s = 1e9,
                                   .inputs_per_s = 1e7};
constexpr std::array<int64_t, 2> kBlocks = {1, 3};
constexpr std::array<const char*, 4> kAllToAlls = {"a2a_1", "a2a_2", "a2a_2.dx", "a2a_1.dx"};
/// Of the 100 ns of an input forward, of the 200 ns backward.
constexpr std::array<std::pair<const char*, int64_t>, 3> kForward = {
    {{"fc1", 40}, {"gelu", 20}, {"fc2", 40}}};
constexpr std::array<std::pair<const char*, int64_t>, 6> kBackward = {{{"fc2.dx", 50},
                                                                       {"fc2.dw", 40},
                                                                       {"gelu.dx", 15},
                                                                       {"gelu.dw", 5},
                                                                       {"fc1.dx", 50},
                                                                       {"fc1.dw", 40}}};

Plan plan_with_rates(int64_t ranks) {
  Plan plan = *make_plan(small_spec({stage("prophet", {{"shadows", 2.0}})}, ranks));
  for (const OpId op : ops_of(plan.graph, "place")) {
    for (const auto& [name, value] : ops::rate_attrs(kRates)) plan.graph.op(op).attrs[name] = value;
  }
  return plan;
}

/// A step's spans, by the names of ops.
struct Spans {
  const Graph& graph;
  int64_t block;
  Timeline timeline;

  void add(const std::string& op, int64_t rank, Nanoseconds begin, Nanoseconds end,
           int32_t chunk = 0) {
    const std::string name = fmt::format("b{}.moe.{}", block, op);
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      if (graph.op(id).name != name) continue;
      timeline.spans.push_back(
          {id, static_cast<int32_t>(rank), LaneId(0), begin, begin, end, 0, chunk});
      return;
    }
    FAIL("no op " << name);
  }
};

PlacementRecord record_of(const Plan& plan, int64_t block, const Placement& placement,
                          const ExpertCounts& loads) {
  const std::vector<int32_t> codes(placement.codes().begin(), placement.codes().end());
  PlacementRecord record;
  record.layer = block;
  record.bounds = ops::bounds_of(plan.graph.op(ops_of(plan.graph, "place").front()));
  record.in_force = record.next = codes;
  count_rows(record, loads, {loads.sources, 1});
  return record;
}

/// A step as the model has it, on its own where a rank is late.
void add_modelled(Spans& spans, const DeviceLoads& loads, int64_t copies, Rng& rng) {
  const auto ranks = static_cast<int64_t>(loads.computed.size());
  const int64_t received = *std::max_element(loads.received.begin(), loads.received.end());
  const auto transfer = [&](const std::string& op, Nanoseconds ns) {
    const Nanoseconds begin = 1000 + rng.below(1000);
    for (int64_t r = 0; r < ranks; ++r) {
      const bool last = r == 1;
      spans.add(op, r, begin - (last ? 0 : rng.below(500)), begin + (last ? ns : ns - ns / 3));
    }
  };
  for (const char* op : kAllToAlls) transfer(op, received * 10);
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t inputs = loads.computed[static_cast<size_t>(r)];
    for (const auto& [op, ns] : kForward) spans.add(op, r, 50, 50 + inputs * ns);
    for (const auto& [op, ns] : kBackward) spans.add(op, r, 50, 50 + inputs * ns);
  }
  transfer("copy", copies * 1000 / ranks);
  transfer("copy.dw", copies * 1000 / ranks);
}

TEST_CASE("spans that are made from the model leave no error") {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Plan plan = plan_with_rates(4);
    Rng rng(seed);
    RunResult result;
    for (int64_t step = 0; step < 3; ++step) {
      result.placements.emplace_back();
      result.timelines.emplace_back();
      for (const int64_t block : kBlocks) {
        const ExpertCounts loads = random_loads(
            {.step = step, .layer = block, .ranks = 4, .tokens = 32, .experts = 4, .k = 1}, seed);
        const Placement none(ops::bounds_of(plan.graph.op(ops_of(plan.graph, "place").front())));
        const Placement placement = copies_heaviest(step)({.loads = loads, .now = none});
        result.placements.back().push_back(record_of(plan, block, placement, loads));
        Spans spans{plan.graph, block, {}};
        add_modelled(spans, device_loads(placement, loads), step * 4, rng);
        auto& all = result.timelines.back().spans;
        all.insert(all.end(), spans.timeline.spans.begin(), spans.timeline.spans.end());
      }
    }
    const ModelErrors errors = planner_errors(plan, result);
    const std::array<int64_t, kNumModelOps> counts = {16, 8, 4, 4};  // of steps 2 and 3
    for (size_t op = 0; op < kNumModelOps; ++op) {
      CAPTURE(seed, op);
      CHECK(errors[op].mean == Approx(0).margin(1e-9));
      CHECK(errors[op].count == counts[op]);
    }
    CHECK(of(errors, ModelOp::kA2a).samples.size() == 24);
  }
}

// Device 0 owns experts 0 and 1, device 1 the others and a copy of 0. H = 45, 37, R = 5, 7: 70 ns
// an all-to-all, 4,500 and 9,000 ns of experts, 2 copies among 2 devices 1,000 ns.
TEST_CASE("a layer's errors are those counted by hand: late ranks and the first step are no part") {
  const Plan plan = plan_with_rates(2);
  ExpertCounts loads(2, 4);
  loads.rows = {30, 10, 7, 0, 20, 5, 4, 6};
  Placement placement(ops::bounds_of(plan.graph.op(ops_of(plan.graph, "place").front())));
  placement.add_shadow(0, 1);
  Spans spans{plan.graph, 1, {}};
  spans.add("a2a_1", 0, 30, 180);  // begun without the other
  spans.add("a2a_1", 1, 100, 170);
  for (const char* op : {"a2a_2", "a2a_2.dx"}) spans.add(op, 0, 100, 170);
  spans.add("a2a_1.dx", 0, 100, 130, 0);
  spans.add("a2a_1.dx", 0, 500, 540, 1);
  spans.add("fc1", 0, 0, 2500);
  spans.add("fc2", 0, 6000, 8500);
  spans.add("fc1", 1, 0, 4000);
  spans.add("fc1.dw", 1, 0, 9000);
  spans.add("copy", 0, 0, 1250);
  spans.add("copy.dw", 0, 0, 500);
  RunResult result;
  const PlacementRecord record = record_of(plan, 1, placement, loads);
  CHECK(record.computed == std::vector<int64_t>{45, 37});
  CHECK(record.received == std::vector<int64_t>{5, 7});
  result.placements = {{record}, {record}};
  result.timelines = {spans.timeline, spans.timeline};
  for (Span& span : result.timelines[0].spans) span.end *= 10;

  const ModelErrors errors = planner_errors(plan, result);
  CHECK(of(errors, ModelOp::kA2a).mean == Approx((10.0 / 80) / 4));
  CHECK(of(errors, ModelOp::kExperts).mean == Approx((500.0 / 5000) / 2));
  CHECK(of(errors, ModelOp::kTrans).mean == Approx(250.0 / 1250));
  CHECK(of(errors, ModelOp::kAgg).mean == Approx(1));
  const ModelError& trans = of(errors, ModelOp::kTrans);
  CHECK(trans.count == 1);
  REQUIRE(trans.samples.size() == 2);
  CHECK(trans.samples[1].step == 1);
  CHECK(trans.samples[1].layer == 1);
  CHECK(trans.samples[1].estimated_s == Approx(1000e-9));
  CHECK(trans.samples[1].real_s == Approx(1250e-9));
}

TEST_CASE("blocks that run again are no part of the times that the model predicts") {
  PlanSpec spec = prophet_spec(2, 2);
  spec.system.stages = {stage("prophet"), stage("serial")};
  const ModelErrors kept = simulated_errors(spec);
  spec.system.stages.push_back(stage("recompute"));
  const ModelErrors again = simulated_errors(spec);
  for (const ModelOp op : {ModelOp::kA2a, ModelOp::kExperts}) {
    REQUIRE(of(again, op).samples.size() == of(kept, op).samples.size());
    CHECK(of(kept, op).count > 0);
    CHECK(of(again, op).mean == Approx(of(kept, op).mean));
  }
}

TEST_CASE("a plan without a placement has no errors of its model") {
  const auto plan = make_plan(small_spec({stage("irregular_a2a")}));
  for (const ModelError& error : planner_errors(*plan, make_simulator()->run(*plan, {}))) {
    CHECK(error.samples.empty());
    CHECK(error.count == 0);
  }
}

}  // namespace
}  // namespace moe::test
