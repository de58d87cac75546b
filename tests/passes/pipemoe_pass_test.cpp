// The pass pipemoe on small plans whose costs are straight lines given by hand.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/passes/capacity/pipemoe_fit.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::message_of;
using test::ops_of;
using test::small_spec;
using test::stage;

/// Lines in ns of a byte and of a multiply-add of one GEMM, both counted; nothing else takes time.
struct Lines {
  double alpha_a, beta_a, alpha_e, beta_e;
  double backward = 2;  // of the experts, over the forward
};

Nanoseconds line_ns(const Lines& lines, const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  const Work work = graph.def(id).work(graph, op, {});
  if (graph.def(id).collective == Collective::kAllToAll) {
    return std::llround(lines.alpha_a + lines.beta_a * work.bytes);
  }
  if (!work.gemm() || op.segment != Segment::kExpert) return 0;
  const double gemm = lines.alpha_e / 2 + lines.beta_e / 4 * work.flops;
  return std::llround(op.phase == Phase::kForward ? gemm : gemm * lines.backward / 2);
}

PlanSpec spec_with(const Lines& lines, std::vector<Stage> stages) {
  PlanSpec spec = small_spec(std::move(stages));  // 10 slots per expert and rank
  spec.cost = std::make_shared<test::GivenCost>(
      [lines](const Graph& graph, OpId op) { return line_ns(lines, graph, op); });
  return spec;
}

Options options_of(const Lines& lines) {
  return {{"alpha_a", lines.alpha_a / 1e9},
          {"beta_a", lines.beta_a / 1e9},
          {"alpha_e", lines.alpha_e / 1e9},
          {"beta_e", lines.beta_e / 1e9}};
}

/// Parts of a layer's first all-to-all.
size_t degree_of(const Plan& plan, int32_t layer) {
  size_t parts = 0;
  for (const OpId id : ops_of(plan.graph, "all_to_all")) {
    const Op& op = plan.graph.op(id);
    parts += op.layer == layer && op.phase == Phase::kForward && op.rows.to_expert();
  }
  return parts;
}

/// A payload is 4 * 10 * 16 floats; its experts 40 * 16 * 64 multiply-adds.
constexpr double kBytes = 2560, kMacs = 40960;

const Lines kShort = {2e6, 1e6 / kBytes, 5e5, 1e6 / kMacs};      // no overlap is worth a start-up
const Lines kBalanced = {5e4, 1e6 / kBytes, 2e5, 2e6 / kMacs};   // a few chunks
const Lines kCompute = {1e3, 3e6 / kBytes, 2e4, 8e6 / kMacs};    // many
const Lines kNetwork = {2e4, 4e6 / kBytes, 1e3, 2.5e6 / kMacs};  // until the experts hide

TEST_CASE("the pass fits the lines that the cost model is made of, and says so") {
  Graph graph = small_spec().model->forward;
  const CapacityChain chain = capacity_chains(graph, "test").front();
  CHECK(chain.capacity == 10);
  const PlanSpec spec = spec_with(kBalanced, {});
  const LayerFit fit = fit_layer(graph, chain, *spec.cost, DegreeObjective::kStep, 64);
  CHECK(fit.degrees == std::vector<int64_t>{1, 2, 4, 8});
  CHECK(fit.model.n_d == kBytes);
  CHECK(fit.model.n_e == kMacs);
  CHECK(fit.model.alpha_a == Approx(5e-5).epsilon(1e-4));
  CHECK(fit.model.beta_a == Approx(kBalanced.beta_a / 1e9).epsilon(1e-4));
  CHECK(fit.model.alpha_e == Approx(2e-4).epsilon(1e-4));
  CHECK(fit.model.beta_e == Approx(kBalanced.beta_e / 1e9).epsilon(1e-4));
  CHECK(*fit.model.alpha_b == Approx(4e-4).epsilon(1e-4));
  CHECK(*fit.model.beta_b == Approx(2 * kBalanced.beta_e / 1e9).epsilon(1e-4));
  CHECK(fit.model.cut_s == 0);
  CHECK(fit.transfer.worst < 1e-4);
  CHECK(fit.backward->worst < 1e-4);
  const auto plan = make_plan(spec_with(kBalanced, {stage("pipemoe")}));
  CHECK_THAT(plan->schedule.log.at(0).why, Contains("degree") && Contains("capacity 10 in parts"));
  CHECK_THAT(plan->schedule.log.at(1).why,
             Contains("transfer 5e-05 s + 3.91e-07 s * 2560 (fitted, error 0.0%"));
}

TEST_CASE("copies of experts are sent once per step, so they are in no line of a part") {
  const auto lines = [](Nanoseconds copy_ns) {
    PlanSpec spec = small_spec({stage("prophet", {{"shadows", 2.0}}),
                                stage("pipemoe", {{"objective", std::string("step")}})});
    spec.cost = std::make_shared<test::GivenCost>([=](const Graph& graph, OpId op) {
      const bool copies = graph.def(op).collective == Collective::kExperts;
      return copies ? copy_ns : line_ns(kBalanced, graph, op);
    });
    const auto plan = make_plan(spec);
    std::string text;
    for (const Decision& line : plan->schedule.log) {
      if (line.stage == "pipemoe") text += line.op + ": " + line.why + "\n";
    }
    return text;
  };
  CHECK(lines(1'000'000'000) == lines(0));
}

TEST_CASE("no other degree makes the simulated forward shorter than the one that the pass takes") {
  std::vector<size_t> degrees;
  for (const Lines& lines : {kShort, kBalanced, kCompute, kNetwork}) {
    const auto forward_ns = [&](Stage cut) {
      const auto plan = make_plan(spec_with(lines, {std::move(cut)}));
      Nanoseconds end = 0;
      for (const Span& span : test::simulate(*plan).spans) {
        if (plan->graph.op(span.op).phase == Phase::kForward) end = std::max(end, span.end);
      }
      return end;
    };
    const Nanoseconds chosen = forward_ns(stage("pipemoe"));
    for (const double degree : {1, 2, 5, 10}) {  // those that cut the capacity evenly
      CHECK(chosen <= forward_ns(stage("capacity_pipeline", {{"degree", degree}})) + 100);
    }
    degrees.push_back(degree_of(*make_plan(spec_with(lines, {stage("pipemoe")})), 1));
  }
  CHECK(degrees == std::vector<size_t>{1, 3, 10, 2});
}

TEST_CASE("lines given as options decide like the same lines fitted") {
  for (const Lines& lines : {kShort, kBalanced, kCompute, kNetwork}) {
    for (const std::string objective : {"forward", "step"}) {
      Options given = options_of(lines);
      given["objective"] = objective;
      const auto by_options = make_plan(spec_with(kShort, {stage("pipemoe", given)}));
      const auto fitted =
          make_plan(spec_with(lines, {stage("pipemoe", {{"objective", objective}})}));
      CHECK(by_options->hash == fitted->hash);
      CHECK_THAT(by_options->schedule.log.at(1).why, Contains("(given)"));
    }
  }
}

TEST_CASE("with the backward counted, compute weighs more and the degree grows") {
  Options step = options_of(kNetwork);
  step["objective"] = std::string("step");
  const auto forward = make_plan(spec_with(kShort, {stage("pipemoe", options_of(kNetwork))}));
  const auto both = make_plan(spec_with(kShort, {stage("pipemoe", step)}));
  CHECK(degree_of(*both, 1) > degree_of(*forward, 1));
}

TEST_CASE("every layer has a degree of its own") {
  Stage mark;  // the second layer's all-to-alls are told apart
  mark.name = "mark";
  mark.kind = StageKind::kForward;
  mark.transform = [](Graph graph, const PassContext&) {
    for (const OpId id : ops_of(graph, "all_to_all")) {
      if (graph.op(id).layer == 3) graph.op(id).attrs["slow"] = int64_t{1};
    }
    return graph;
  };
  PlanSpec spec = small_spec({mark, stage("pipemoe")});
  spec.cost = std::make_shared<test::GivenCost>([](const Graph& graph, OpId op) {
    const bool slow = attr_int(graph.op(op), "slow") != 0;
    return line_ns(kBalanced, graph, op) * (slow ? 3 : 1);
  });
  const auto plan = make_plan(spec);
  CHECK(degree_of(*plan, 1) == 3);
  CHECK(degree_of(*plan, 3) == 2);
}

TEST_CASE("transfers leave in the order D_1..D_r, C_1..C_r, forward and backward") {
  const auto plan = make_plan(spec_with(kBalanced, {stage("pipemoe")}));
  REQUIRE(degree_of(*plan, 1) == 3);
  std::string order;
  for (const OpId id : plan->orders.lanes[1]) {
    const Op& op = plan->graph.op(id);
    if (plan->graph.def(id).collective != Collective::kAllToAll || op.layer != 1) continue;
    order += fmt::format("{}{} ", op.rows.to_expert() ? "D" : "C", op.part);
  }
  CHECK_THAT(order, Catch::StartsWith("D0 D1 D2 C0 C1 C2 D"));
  CHECK(order.size() == 36);  // and as many of the backward, whose gradients go out first
  CHECK(order.substr(18).find('C') == 9);
}

std::string refusal(Options options) {
  return message_of<UserError>([&] { make_plan(small_spec({stage("pipemoe", options)})); });
}

TEST_CASE("lines in part, negative ones and impossible degrees are refused with field and value") {
  Options lines = options_of(kBalanced);
  lines.erase("beta_e");
  CHECK_THAT(refusal(lines), Contains("pipemoe.beta_e is missing"));
  lines["beta_e"] = -0.5;
  CHECK_THAT(refusal(lines), Contains("pipemoe.beta_e = -0.5: a number of at least 0"));
  lines["beta_e"] = 1e-9;
  lines["degrees"] = std::string("1,16");
  CHECK_THAT(refusal(lines),
             Contains("pipemoe.degrees contains 16, but op 'b1.moe.a2a_1' has a capacity") &&
                 Contains("1 to 10 is allowed"));
  CHECK_THAT(refusal({{"degrees", std::string("0,2")}}), Contains("contains the degree 0"));
  CHECK_THAT(refusal({{"degrees", std::string("2;4")}}), Contains("pipemoe.degrees = '2;4'"));
  CHECK_THAT(refusal({{"degrees", std::string("2,")}}), Contains("pipemoe.degrees = '2,'"));
  CHECK_THAT(refusal({{"max_degree", 2.5}}), Contains("pipemoe.max_degree = 2.5"));
  CHECK_THAT(refusal({{"max_degree", 0.0}}), Contains("pipemoe.max_degree = 0"));
}

TEST_CASE("on one rank there is nothing to send and nothing to cut") {
  const auto plan = make_plan(small_spec({stage("pipemoe")}, 1));
  CHECK(!plan->stages[0].changed);
}

TEST_CASE("a set of degrees and the method reach the choice") {
  Options options = options_of(kBalanced);
  options["degrees"] = std::string("1,2,5");
  CHECK(degree_of(*make_plan(spec_with(kShort, {stage("pipemoe", options)})), 1) == 2);
  options["degrees"] = std::string();
  options["max_degree"] = 2.0;
  CHECK(degree_of(*make_plan(spec_with(kShort, {stage("pipemoe", options)})), 1) == 2);
  options["max_degree"] = 64.0;
  options["method"] = std::string("brute");
  CHECK(degree_of(*make_plan(spec_with(kShort, {stage("pipemoe", options)})), 1) == 3);
  CHECK_THAT(refusal({{"method", std::string("exakt")}}), Contains("exact"));
}

}  // namespace
}  // namespace moe
