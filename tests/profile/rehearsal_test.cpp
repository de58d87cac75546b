#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/exec/cpu/executor.h"
#include "engine/graph/op_def.h"
#include "engine/profile/rehearsal.h"
#include "engine/routing/workload.h"
#include "tests/exec/support.h"

namespace moe {
namespace {

constexpr Nanoseconds kAlone = 1000;

/// Every op takes 1 us alone, also where its bytes go over a link.
class EvenCost : public CostModel {
 public:
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return is_view(graph, graph.op(op)) ? 0 : kAlone;
  }
  std::string describe() const override { return "1 us per op"; }
};

PlanSpec tiny_target(bool emulated, int64_t num_ranks = 2) {
  PlanSpec spec = rehearsal_spec(test::spec_of(test::small_model(), num_ranks), emulated);
  spec.cost = std::make_shared<EvenCost>();
  return spec;
}

TEST_CASE("a rehearsal gives every kind of op of the plain program a finite figure") {
  const bool emulated = GENERATE(false, true);
  const auto plan = make_plan(tiny_target(emulated));
  const StepSamples samples = rehearse(*plan, {.steps = 3, .emulated = emulated});
  for (const auto& [group, ns] : samples) {
    INFO(group);
    CHECK((group.find("core") == 0 ? ns.size() > 3 : ns.size() == 3));
  }
  const InStep result = in_step(*plan, samples);
  CHECK(result.factors.size() + result.late.size() + (emulated ? 4 : 2) == samples.size());
  CHECK((result.core_ns > 0) == emulated);
  CHECK(result.core_late_ns >= 0);
  CHECK(result.factors.count("linear forward") + result.factors.count("sgd update") == 2);
  CHECK(result.late.size() == 2);
  for (const auto& [group, factor] : result.factors) {
    INFO(group);
    CHECK((std::isfinite(factor) && factor > 0));
  }
  CHECK((std::isfinite(result.overall) && result.overall > 0));
  CHECK((std::isfinite(result.peers) && result.peers >= 1));
}

TEST_CASE("with a pace a rehearsal finds no core time, and collectives end as the link says") {
  PlanSpec spec = tiny_target(true, 4);
  const auto plan = make_plan(spec);
  const StepSamples samples = rehearse(*plan, {.steps = 2, .emulated = true, .pace = 3});
  CHECK(samples.count("core") == 0);
  const InStep result = in_step(*plan, samples);
  CHECK(result.core_ns == 0);
  CHECK(result.core_late_ns == 0);
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (plan->graph.def(op).collective == Collective::kNone) continue;
    const auto& ns = samples.at(step_group(plan->graph, op));
    CHECK(*std::min_element(ns.begin(), ns.end()) >=
          collective_ns(spec.cluster, plan->graph, op, {}) - 1);
  }
}

TEST_CASE("over an emulated link a collective is never over before the link model says") {
  PlanSpec spec = tiny_target(true);
  const auto plan = make_plan(spec);
  const StepSamples samples = rehearse(*plan, {.steps = 3, .emulated = true});
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (plan->graph.def(op).collective == Collective::kNone) continue;
    const auto& ns = samples.at(step_group(plan->graph, op));
    CHECK(*std::min_element(ns.begin(), ns.end()) >=
          collective_ns(spec.cluster, plan->graph, op, {}));
  }
}

TEST_CASE("on pipeline ranks the time of an op is averaged over its own ranks") {
  constexpr int64_t kStages = 2, kMicro = 3, kData = 2;
  PlanSpec spec = tiny_target(true, kData);
  test::change_model(spec, [](test::Gpt2& m) { m.micro_batches = kMicro; });
  spec.cluster.nodes *= kStages;
  pipeline::Turns turns;
  for (const pipeline::Work work : {pipeline::Work::kF, pipeline::Work::kB}) {
    for (int32_t micro = 0; micro < kMicro; ++micro) turns.push_back({work, micro});
  }
  spec.pipeline = {{kStages, kStages, kMicro}, {turns, turns}, {1, 1}};
  const auto plan = make_plan(spec);
  Timeline step;
  step.num_ranks = kStages * kData;
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    std::vector<int64_t> on = {plan->graph.op(op).pipeline_rank};
    if (plan->graph.def(op).collective == Collective::kHandoff) {
      on.push_back(attr_int(plan->graph.op(op), "peer"));
    }
    if (is_view(plan->graph, plan->graph.op(op))) continue;
    for (const int64_t p : on) {
      for (int64_t r = 0; r < kData; ++r) {
        step.spans.push_back(
            {.op = op, .rank = static_cast<int32_t>(p * kData + r), .end = kAlone});
      }
    }
  }
  RunResult result;
  result.timelines = {step, step};
  result.metrics = {{}, {}};
  const InStep seen = in_step(*plan, step_samples(plan->graph, result));
  CHECK(seen.late.count("receive") == 1);
  for (const auto& [group, factor] : seen.factors) CHECK(factor == 1);
  for (const auto& [group, late] : seen.late) CHECK(late == 0);
  CHECK(seen.overall == 1);
  CHECK(seen.peers == 1);
}

TEST_CASE("factors are middles of the steps over the time alone, lateness a collective's share") {
  const auto plan = make_plan(tiny_target(false));
  std::map<std::string, int64_t> ops;
  int64_t compute = 0;
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_view(plan->graph, plan->graph.op(op))) continue;
    ++ops[step_group(plan->graph, op)];
    compute += plan->graph.def(op).collective == Collective::kNone ? 1 : 0;
  }
  StepSamples samples;
  for (const auto& [group, n] : ops) samples[group] = {9 * n * kAlone, n * kAlone, 2 * n * kAlone};
  const int64_t linear = ops.at("linear forward");
  samples["linear forward"] = {3 * linear * kAlone};
  samples["peers"] = {0, 100 * (compute * 2 + linear), 1'000'000'000};
  samples["step"] = {1000, 900, 1300, 1100};

  const InStep result = in_step(*plan, samples);
  CHECK(result.factors.at("linear forward") == 3);
  CHECK(result.factors.at("sgd update") == 2);
  CHECK(result.late.at("all_to_all") == kAlone);
  CHECK(result.overall == Approx(2 + static_cast<double>(linear) / static_cast<double>(compute)));
  CHECK(result.peers == Approx(1.1));
  CHECK(result.core_ns == 0);
  CHECK(result.spread == Approx(100.0 / 1100));
  for (const auto& [group, ns] : samples) {
    INFO(group);
    StepSamples fewer = samples;
    fewer.erase(group);
    CHECK_THROWS_WITH(in_step(*plan, fewer), Catch::Contains("no samples of the group '" + group));
  }
}

TEST_CASE("factors do not jump where steps have two speeds") {
  const auto plan = make_plan(tiny_target(false));
  const auto factor = [&](int64_t slow_steps) {
    StepSamples samples = {{"peers", {0}}, {"step", {1}}};
    for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
      std::vector<Nanoseconds>& ns =
          samples[step_group(plan->graph, OpId(static_cast<int64_t>(i)))];
      ns.resize(9);
      for (int64_t step = 0; step < 9; ++step)
        ns[static_cast<size_t>(step)] += (step < slow_steps ? 14 : 10) * kAlone / 10;
    }
    return in_step(*plan, samples).factors.at("linear forward");
  };
  CHECK(factor(0) == Approx(1));
  CHECK(factor(9) == Approx(1.4));
  for (int64_t slow = 1; slow <= 9; ++slow) CHECK(factor(slow) - factor(slow - 1) <= 0.1);
  CHECK(factor(1) == Approx(1));  // one late step of nine is not seen
}

TEST_CASE("a rehearsal is executed again only if the last one began before the given time") {
  Rehearsal rehearsal(make_plan(tiny_target(true)), {.steps = 2, .emulated = true});
  rehearsal.execute(0);
  const InStep first = rehearsal.in_step();
  CHECK(first.took_ns > 0);
  CHECK((first.speed_spread > 0 && first.speed_spread < 1));
  CHECK_THAT(first.source, Catch::Contains("2 rehearsed steps") && Catch::Contains("0.5 GB/s"));
  rehearsal.execute(0);
  CHECK(rehearsal.in_step().took_ns == first.took_ns);
  rehearsal.execute(clock_ns());
  CHECK(rehearsal.in_step().took_ns != first.took_ns);
  Rehearsal paced(make_plan(tiny_target(true)), {.steps = 2, .emulated = true, .pace = 2});
  paced.execute(0);
  CHECK_THAT(paced.in_step().source, Catch::Contains("pace 2"));
}

TEST_CASE("a rehearsal keeps the experts that its gate chose for the tokens of each step") {
  const auto plan = make_plan(tiny_target(false));
  Rehearsal rehearsal(plan, {.steps = 3});
  rehearsal.execute(0);
  REQUIRE(rehearsal.routing() != nullptr);
  const Model& model = *plan->spec.model;
  const ExpertCounts loads = rehearsal.routing()->loads({.step = 1,
                                                         .ranks = 2,
                                                         .tokens = model.tokens_per_rank(),
                                                         .experts = model.experts,
                                                         .k = plan->spec.gate.k});
  CHECK(loads.total() == 2 * model.tokens_per_rank() * plan->spec.gate.k);
  for (int64_t e = 1; e < model.experts; ++e) {  // what a balanced routing would be
    if (loads.of_expert(e) != loads.of_expert(0)) return;
  }
  FAIL("the gate of an untrained model chooses all experts equally often");
}

TEST_CASE("a rehearsal under a routing model says nothing about the gate's choices") {
  PlanSpec target = test::spec_of(test::small_model(), 2);
  target.routing = std::make_shared<const RoutingModel>(workload("hot_rank", {{"share", 0.8}}, 1));
  PlanSpec plain = rehearsal_spec(target, false);
  CHECK(plain.routing != nullptr);
  plain.cost = std::make_shared<EvenCost>();
  Rehearsal rehearsal(make_plan(std::move(plain)), {.steps = 1});
  rehearsal.execute(0);
  CHECK(rehearsal.routing() == nullptr);
}

TEST_CASE("beside runs the machine is as slow as the steps of a rehearsal tell") {
  const auto plan = make_plan(tiny_target(false));
  StepSamples then = rehearse(*plan, {.steps = 3}), now = then;  // whose middles are samples
  CHECK(slower(plan->graph, now, then) == 1);
  for (auto& [group, samples] : now) {
    for (Nanoseconds& ns : samples) ns *= 3;
  }
  CHECK(slower(plan->graph, now, then) == Approx(3));
  now["all_to_all"] = {1'000'000'000};  // that does not depend on the cores
  CHECK(slower(plan->graph, now, then) == Approx(3));
  now["peers"] = {1'000'000'000};
  CHECK(slower(plan->graph, now, then) > 3);

  Rehearsal rehearsal(plan, {.steps = 2});
  rehearsal.execute(0);
  const RehearsalRun beside = rehearsal.beside(4);
  const RunResult result = make_cpu_executor()->run(*beside.plan, beside.options);
  CHECK(result.timelines.size() == 4);
  const SpeedBeside speed = rehearsal.speed(result);
  CHECK(speed.slower > 0);
  const InStep &before = rehearsal.in_step(), &now_beside = rehearsal.in_step_beside();
  CHECK(now_beside.core_ns == before.core_ns);
  CHECK(now_beside.factors.size() == before.factors.size());
  CHECK(now_beside.factors != before.factors);
  CHECK((0 < speed.compute_share && speed.compute_share <= 1));
  std::vector<double> steps = speed.steps;
  REQUIRE(steps.size() == 3);  // the first does not count
  std::sort(steps.begin(), steps.end());
  CHECK(steps[1] == Approx(1));
}

TEST_CASE("ops that steps run faster than the profile says are timed again, once a signature") {
  std::set<std::string> kinds, signatures;
  size_t calls = 0;
  RehearsalOptions options = {.steps = 1};
  options.time_again = [&](const Graph& graph, OpId op) {
    kinds.insert(graph.def(op).name);
    signatures.insert(op_signature(graph, op));
    ++calls;
  };
  /// Linear ops and all-to-alls take a second alone, others nothing.
  class Disturbed : public EvenCost {
    Nanoseconds op_ns(const Graph& graph, OpId op) const override {
      const std::string_view kind = graph.def(op).name;
      return kind == "linear" || kind == "all_to_all" ? 1'000'000'000 : 0;
    }
  };
  PlanSpec spec = tiny_target(false);
  spec.cost = std::make_shared<Disturbed>();
  Rehearsal rehearsal(make_plan(spec), options);
  rehearsal.execute(0);
  CHECK(kinds == std::set<std::string>{"all_to_all", "linear"});
  CHECK(calls == signatures.size());
  rehearsal.execute(clock_ns());  // they were timed again before
  CHECK(calls == signatures.size());
}

TEST_CASE("a rehearsal sees neither the target's link, nor its system, fill or learning rate") {
  PlanSpec target = test::spec_of(test::small_model(), 2);
  target.cost = std::make_shared<EvenCost>();
  PlanSpec other = target;
  other.cluster.intra.bytes_per_s = other.cluster.nic.bytes_per_s = 1e3;
  other.system = {.name = "other", .sync = {.lane = ReduceLane::kOwn}};
  other.work.slot_occupancy = 0.5;
  CHECK(make_plan(rehearsal_spec(other, true))->hash ==
        make_plan(rehearsal_spec(target, true))->hash);
  CHECK(rehearsal_spec(other, true).cluster.nic.bytes_per_s ==
        rehearsal_spec(target, true).cluster.nic.bytes_per_s);

  PlanSpec diverging = tiny_target(false);
  diverging.optimizer = Sgd{.lr = 1e38};
  CHECK_NOTHROW(rehearse(*make_plan(diverging), {.steps = 3}));
}

}  // namespace
}  // namespace moe
