// Lina's inference on CPU ranks: where experts are brought to is no part of the model.
#include <catch2/catch.hpp>
#include <cstdio>
#include <set>

#include "engine/graph/op_def.h"
#include "engine/placement/path_profile.h"
#include "engine/routing/workload.h"
#include "engine/sim/simulator.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

Stage lina(Options options = {}) {
  return pass("lina_inference", std::move(options));
}

/// Four MoE layers of four experts.
PlanSpec inference_spec(int64_t ranks, Precision precision = Precision::kF64) {
  Gpt2 model = small_model("switch", 2);
  model.layers = 4;
  model.moe_every = 1;
  PlanSpec spec = spec_of(model, ranks, precision);
  spec.inference = true;
  return spec;
}

RunResult infer(const Plan& plan, int64_t batches,
                std::shared_ptr<const PathProfile> popularity = nullptr) {
  RunOptions options = options_of(plan, batches);
  options.test.poison = true;
  options.infer.keep_predictions = true;
  options.infer.popularity = std::move(popularity);
  return run_cpu(plan, options);
}

/// Paths as a routing model has them, of batches that are not run.
std::shared_ptr<const PathProfile> profile_of(const RoutingModel& routing, const PlanSpec& spec,
                                              int64_t path, bool shorter = false) {
  const Model& m = *spec.model;
  const PathOptions options = {
      .layers = m.num_moe_layers(), .experts = m.experts, .path = path, .shorter = shorter};
  PathCounts counts(options);
  const int64_t tokens = m.batch_per_device * m.seq;
  for (int64_t step = 100; step < 120; ++step) {
    for (int64_t rank = 0; rank < spec.num_ranks; ++rank) {
      TokenPaths paths(options, tokens);
      for (int64_t layer = 0; layer < m.num_moe_layers(); ++layer) {
        std::vector<int32_t> choices(static_cast<size_t>(tokens));
        routing.route({step, layer, spec.num_ranks, tokens, m.experts, 1}, rank, choices);
        counts.add(layer, paths, choices, 1);
        paths.add(choices, 1);
      }
    }
  }
  return std::make_shared<const PathProfile>(counts.profile());
}

constexpr Tolerance kOffloaded = {.losses = 1e-12, .norms = 1e-12};

constexpr std::pair<int64_t, int64_t> kGrids[] = {{2, 0}, {4, 0}, {4, 2}};  // ranks, ep

TEST_CASE("experts from host memory give the outputs of one expert per device") {
  const std::vector<Options> systems = {{},
                                        {{"fine_tuning", false}},
                                        {{"estimation", false}},
                                        {{"share", std::string("weighted")}},
                                        {{"compare", std::string("set")}, {"normalise", true}}};
  for (const auto& [ranks, ep] : kGrids) {
    PlanSpec spec = inference_spec(ranks);
    change_model(spec, [ep = ep](Gpt2& m) { m.ep = ep; });
    const RoutingModel routing = workload("markov", {}, 5);
    for (const bool by_routing : {true, false}) {
      if (by_routing) spec.routing = std::make_shared<RoutingModel>(routing);
      if (!by_routing) spec.routing = nullptr;
      const RunResult expected = infer(*plan_with(spec, {}), 3);
      const auto profile = profile_of(routing, spec, 2);
      for (Options options : systems) {
        options["path"] = 2.0;
        CAPTURE(ranks, ep, by_routing, options.size());
        const RunResult result = infer(*plan_with(spec, {lina(options)}), 3, profile);
        CHECK(same_run(expected, result, kOffloaded));
      }
    }
  }
}

void check_same_decisions(const RunResult& simulated, const RunResult& executed) {
  REQUIRE(simulated.offloads.size() == executed.offloads.size());
  for (size_t i = 0; i < executed.offloads.size(); ++i) {
    REQUIRE(simulated.offloads[i].size() == executed.offloads[i].size());
    for (size_t l = 0; l < executed.offloads[i].size(); ++l) {
      const OffloadRecord &a = simulated.offloads[i][l], &b = executed.offloads[i][l];
      CAPTURE(i, b.layer);
      CHECK(a.layer == b.layer);
      CHECK(a.fine_tunes == b.fine_tunes);
      CHECK(a.again == b.again);
      CHECK(a.expected == b.expected);
      CHECK(a.in_force == b.in_force);
      CHECK(a.rows == b.rows);
    }
    for (size_t l = 0; l < executed.moe[i].size(); ++l) {
      CHECK(simulated.moe[i][l].counts == executed.moe[i][l].counts);
      CHECK(simulated.moe[i][l].load == executed.moe[i][l].load);
      CHECK(simulated.moe[i][l].dropped == executed.moe[i][l].dropped);
    }
  }
}

TEST_CASE("the simulator decides what CPU ranks decide: placements of both phases, and rows") {
  const std::vector<Options> systems = {
      {},
      {{"fine_tuning", false}, {"normalise", true}},
      {{"estimation", false}, {"share", std::string("weighted")}},
      {{"compare", std::string("set")}, {"share", std::string("weighted")}, {"seed", 3.0}}};
  std::set<bool> again, dropped;
  for (const auto& [ranks, ep] : kGrids) {
    for (const std::string name : {"markov", "hot_expert"}) {
      PlanSpec spec = inference_spec(ranks);
      change_model(spec, [ep = ep](Gpt2& m) { m.ep = ep; });
      const RoutingModel routing = workload(name, {}, 5);
      spec.routing = std::make_shared<RoutingModel>(routing);
      for (Options options : systems) {
        options["path"] = 2.0;
        CAPTURE(ranks, ep, name, options.size());
        const auto plan = plan_with(spec, {lina(options)});
        RunOptions run = options_of(*plan, 3);
        run.first_step = 7;
        run.infer.popularity = profile_of(routing, spec, 2);
        const RunResult executed = run_cpu(*plan, run);
        check_same_decisions(make_simulator()->run(*plan, run), executed);
        for (const OffloadRecord& record : executed.offloads[0]) again.insert(record.again);
        for (const MoeStats& layer : executed.moe[0]) dropped.insert(layer.dropped > 0);
      }
    }
  }
  CHECK(again.size() == 2);
  CHECK(dropped.contains(true));
}

TEST_CASE("where a path is short, layers before it are estimated by what there is of it") {
  PlanSpec spec = inference_spec(2);
  const RoutingModel routing = workload("markov", {}, 5);
  spec.routing = std::make_shared<RoutingModel>(routing);
  const auto plan = plan_with(spec, {lina({{"path", 3.0}, {"shorter", true}})});
  CHECK(!plan->graph.find_op("b0.moe.swap_in").valid());
  RunOptions run = options_of(*plan, 2);
  run.infer.popularity = profile_of(routing, spec, 3, true);
  const RunResult executed = run_cpu(*plan, run);
  REQUIRE(executed.offloads[0].size() == 3);
  CHECK(executed.offloads[0][0].expected != executed.offloads[0][1].expected);
  check_same_decisions(make_simulator()->run(*plan, run), executed);
  CHECK(
      same_run(infer(*plan_with(spec, {}), 2), infer(*plan, 2, run.infer.popularity), kOffloaded));
}

TEST_CASE("popular experts are on more devices than one, and their rows are shared") {
  PlanSpec spec = inference_spec(4);
  const RoutingModel routing = workload("hot_expert", {{"share", 0.7}}, 5);
  spec.routing = std::make_shared<RoutingModel>(routing);
  const auto plan = plan_with(spec, {lina({{"path", 2.0}})});
  RunOptions options = options_of(*plan, 2);
  options.infer.popularity = profile_of(routing, spec, 2);
  const RunResult result = run_cpu(*plan, options);
  const auto most_received = [&](const std::string& op) {
    std::vector<Bytes> sent;
    for (const Span& span : result.timelines[1].spans) {
      if (plan->graph.op(span.op).name == op) sent.push_back(span.bytes);
    }
    REQUIRE(sent.size() == 4);
    return *std::max_element(sent.begin(), sent.end());
  };
  // On the way back a device sends what it received: with replicas the fullest sends less.
  CHECK(2 * most_received("b3.moe.a2a_2") < most_received("b0.moe.a2a_2") * 3 / 2);
}

TEST_CASE("a forward alone has no states and no backward, and the layers before the path stay") {
  const auto plan = plan_with(inference_spec(2), {lina({{"path", 3.0}})});
  for (const Op& op : plan->graph.ops()) CHECK(op.phase == Phase::kForward);
  for (const Tensor& tensor : plan->graph.tensors()) CHECK(tensor.kind != TensorKind::kState);
  CHECK(!plan->graph.find_op("b2.moe.swap_in").valid());
  CHECK(plan->graph.find_op("b3.moe.swap_in").valid());
  CHECK(plan->graph.find_op("b3.moe.fine_tune").valid());
}

TEST_CASE("a trained model's parameters are taken alone, from any ranks and placement") {
  const std::string path = "inference_parameters_test";
  PlanSpec training = inference_spec(4);
  training.inference = false;
  const auto trained = plan_with(training, {pass("swap")});
  RunOptions options = options_of(*trained, 3);
  options.train.checkpoints.write_to = path;
  const RunResult written = run_cpu(*trained, options);
  for (const std::vector<Stage>& stages : {std::vector<Stage>{}, {lina({{"path", 1.0}})}}) {
    const auto plan = plan_with(inference_spec(4), stages);
    RunOptions taken = options_of(*plan, 0);
    taken.infer.parameters_from = path;
    CHECK(run_cpu(*plan, taken).digest == written.digest);
  }
  PlanSpec wider = inference_spec(4);
  change_model(wider, [&](Gpt2& m) { m.hidden *= 2; });
  const auto other = plan_with(wider, {});
  RunOptions taken = options_of(*other, 0);
  taken.infer.parameters_from = path;
  CHECK_THROWS_WITH(run_cpu(*other, taken),
                    Catch::Contains("tensor wte [32,16] F64 in the file, tensor wte [32,32]"));
  std::remove(path.c_str());
}

TEST_CASE("inference beside a cut or another placement is refused by name") {
  CHECK_THROWS_WITH(
      plan_with(inference_spec(2), {pass("swap"), lina()}),
      Catch::Contains("stage 'lina_inference'") && Catch::Contains("is already cut or placed"));
}

}  // namespace
}  // namespace moe::test
