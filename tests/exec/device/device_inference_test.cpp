// Inference on a device: what Lina's systems compute, predict, estimate and place has the bits of
// CPU ranks, whatever the streams' timing; experts stay in host memory, their copies are real.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "engine/graph/op_def.h"
#include "engine/routing/workload.h"
#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

Stage lina(Options options = {}) {
  options.try_emplace("path", 2.0);
  return pass("lina_inference", std::move(options));
}

/// Four MoE layers of four experts.
PlanSpec spec_to_serve(const std::string& gate, int64_t ranks,
                       Precision precision = Precision::kF32) {
  Gpt2 model = small_model(gate, 2);
  model.layers = 4;
  model.moe_every = 1;
  PlanSpec spec = spec_of(model, ranks, precision);
  spec.inference = true;
  return spec;
}

RunOptions serving(const Plan& plan, int64_t batches) {
  RunOptions options = options_of(plan, batches);
  options.infer.keep_predictions = true;
  return options;
}

/// [tokens, k]; none is dropped: these are choices before drops.
std::vector<int32_t> choices_of(const Trace& trace, int64_t step, int64_t layer, int64_t rank) {
  const int64_t n = trace.tokens * trace.k;
  const auto first =
      trace.choices.begin() + ((step * trace.layers + layer) * trace.ranks + rank) * n;
  std::vector<int32_t> choices;
  std::transform(first, first + n, std::back_inserter(choices),
                 [](uint16_t e) { return e == kNoExpert ? -1 : int32_t{e}; });
  return choices;
}

/// The paths that a run's tokens took.
std::shared_ptr<const PathProfile> profile_of(const Trace& trace, int64_t path) {
  const PathOptions options = {.layers = trace.layers, .experts = trace.experts, .path = path};
  PathCounts counts(options);
  for (int64_t step = 0; step < trace.steps; ++step) {
    for (int64_t rank = 0; rank < trace.ranks; ++rank) {
      TokenPaths paths(options, trace.tokens);
      for (int64_t layer = 0; layer < trace.layers; ++layer) {
        const std::vector<int32_t> choices = choices_of(trace, step, layer, rank);
        counts.add(layer, paths, choices, trace.k);
        paths.add(choices, trace.k);
      }
    }
  }
  return std::make_shared<const PathProfile>(counts.profile());
}

/// By op and rank: what it sent in the last batch, which is what placements made of it.
std::map<std::pair<int32_t, int32_t>, Bytes> sent(const RunResult& result) {
  std::map<std::pair<int32_t, int32_t>, Bytes> bytes;
  for (const Span& span : result.timelines.back().spans) {
    if (span.lane.index() > 0) bytes[{span.op.value, span.rank}] += span.bytes;
  }
  return bytes;
}

void check_same(const RunResult& device, const RunResult& cpu) {
  CHECK(same_run(cpu, device));
  CHECK(sent(device) == sent(cpu));
}

/// Every way to order the streams, every second one poisoned.
RunResult check_on_device(const Plan& plan, RunOptions options) {
  const auto recorded = options.record;
  const RunResult expected = run_cpu(plan, options);
  for (const LazyOrder order :
       {LazyOrder::kAsGiven, LazyOrder::kFirstFirst, LazyOrder::kLastFirst, LazyOrder::kRandom}) {
    CAPTURE(static_cast<int>(order));
    options.test.poison = !options.test.poison;
    if (recorded) options.record = std::make_shared<Trace>();
    const RunResult result = run_lazy(plan, options, order, 7);
    check_same(result, expected);
    CHECK(result.provenance == Provenance::kMeasured);
    if (recorded) CHECK(options.record->choices == recorded->choices);
  }
  return expected;
}

/// What a plain run of these batches chose.
std::shared_ptr<const PathProfile> learnt(const PlanSpec& spec, int64_t batches, int64_t path) {
  const auto plan = plan_with(spec, {});
  RunOptions options = options_of(*plan, batches);
  options.record = std::make_shared<Trace>();
  run_cpu(*plan, options);
  return profile_of(*options.record, path);
}

TEST_CASE("a device serves batches as CPU ranks do, bit by bit, whatever its streams' timing") {
  const std::string gate = GENERATE("switch", "top2", "bpr", "hash");
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(gate, ranks);
    const PlanSpec spec = spec_to_serve(gate, ranks);
    for (const auto& stages :
         std::vector<std::vector<Stage>>{{}, {pass("irregular_a2a"), pass("used_rows")}}) {
      const auto plan = plan_with(spec, stages);
      RunOptions options = serving(*plan, 3);
      options.record = std::make_shared<Trace>();
      check_on_device(*plan, options);
    }
  }
}

TEST_CASE("Lina's inference on a device has the predictions, estimates and placements of the CPU") {
  const std::vector<Options> systems = {{},
                                        {{"fine_tuning", false}},
                                        {{"estimation", false}},
                                        {{"compare", std::string("set")}, {"normalise", true}}};
  const bool by_routing = GENERATE(false, true);
  const int64_t ranks = GENERATE(2, 4);
  PlanSpec spec = spec_to_serve("switch", ranks);
  if (by_routing) spec.routing = std::make_shared<RoutingModel>(workload("markov", {}, 5));
  const auto profile = learnt(spec, 2, 2);
  const RunResult plain = run_cpu(*plan_with(spec, {}), serving(*plan_with(spec, {}), 3));
  std::set<bool> again;
  for (const Options& options : systems) {
    CAPTURE(by_routing, ranks, options.size());
    const auto plan = plan_with(spec, {lina(options)});
    RunOptions run = serving(*plan, 3);
    run.infer.popularity = profile;
    run.record = std::make_shared<Trace>();
    const RunResult result = check_on_device(*plan, run);
    CHECK(result.predictions == plain.predictions);
    for (const auto& batch : result.offloads) {
      for (const OffloadRecord& record : batch) again.insert(record.again);
    }
  }
  CHECK(again.size() == 2);
}

TEST_CASE("several choices per token, a hot expert and no estimate at all are served on a device") {
  PlanSpec two = spec_to_serve("top2", 2);
  const auto plan = plan_with(two, {lina()});
  RunOptions options = serving(*plan, 2);
  check_on_device(*plan, options);  // blind: nothing is known of any path
  options.infer.popularity = learnt(two, 2, 2);
  check_on_device(*plan, options);

  PlanSpec hot = spec_to_serve("switch", 4);
  hot.routing = std::make_shared<RoutingModel>(workload("hot_expert", {{"share", 0.7}}, 5));
  const auto shared = plan_with(hot, {lina()});
  options = serving(*shared, 2);
  options.infer.popularity = learnt(hot, 2, 2);
  check_on_device(*shared, options);
}

TEST_CASE("offloaded experts lie in host memory alone") {
  const auto plan = plan_with(spec_to_serve("switch", 4), {lina()});
  Bytes experts = 0;
  std::set<TensorId> counted;
  for (const Op& op : plan->graph.ops()) {
    if (plan->graph.def(op).name != std::string_view("swap_in")) continue;
    for (const TensorId t : op.inputs) {
      const bool waits = plan->graph.tensor(t).kind == TensorKind::kParam;
      if (waits && counted.insert(t).second) experts += plan->memory.buffers[t.index()].bytes;
    }
  }
  CHECK(counted.size() == 8);  // two layers' weights and biases
  const auto plain = make_plan(spec_to_serve("switch", 4));
  const auto device_bytes = [](const Plan& p) {
    return run_lazy(p, serving(p, 1), LazyOrder::kAsGiven, 1).peak_bytes;
  };
  const Bytes scratch =
      device_bytes(*plain) - plain->memory.arena_bytes - plain->memory.persistent_bytes;
  CHECK(device_bytes(*plan) ==
        plan->memory.arena_bytes + plan->memory.persistent_bytes - experts + scratch);
}

TEST_CASE("a forward that the host has no part in is recorded and replayed, predictions with it") {
  const auto plan = plan_with(spec_to_serve("switch", 2), {});
  const RunOptions options = serving(*plan, 5);
  check_same(run_lazy(*plan, options, LazyOrder::kRandom, 3), run_cpu(*plan, options));
  CHECK(lazy_stats().replays == 4);
}

TEST_CASE("a device takes a trained model's parameters, its experts with them") {
  const std::string path = "device_inference_parameters_test";
  PlanSpec training = spec_to_serve("switch", 2);
  training.inference = false;
  const auto trained = plan_with(training, {});
  RunOptions options = options_of(*trained, 2);
  options.train.checkpoints.write_to = path;
  const RunResult written = run_cpu(*trained, options);
  for (const std::vector<Stage>& stages : {std::vector<Stage>{}, {lina()}}) {
    const auto plan = plan_with(spec_to_serve("switch", 2), stages);
    RunOptions taken = serving(*plan, 2);
    taken.infer.parameters_from = path;
    taken.train.eval_batches = 2;
    taken.train.eval_data = taken.data;
    CHECK(check_on_device(*plan, taken).digest == written.digest);
  }
  std::remove(path.c_str());
}

TEST_CASE("a device serves in bfloat16, and where experts are changes nothing then either") {
  const PlanSpec spec = spec_to_serve("switch", 2, Precision::kBF16);
  PlanSpec in_float = spec_to_serve("switch", 2);
  change_model(in_float, [&](Gpt2& m) { m.dtype = DType::kF32; });
  const auto near = plan_with(in_float, {});
  const RunResult expected = run_cpu(*near, serving(*near, 2));
  const auto profile = learnt(in_float, 2, 2);
  std::vector<RunResult> results;
  for (const auto& stages : std::vector<std::vector<Stage>>{
           {pass("irregular_a2a"), pass("used_rows")}, {lina()}, {lina({{"estimation", false}})}}) {
    const auto plan = plan_with(spec, stages);
    RunOptions options = serving(*plan, 2);
    options.infer.popularity = profile;
    options.test.poison = true;
    for (const uint64_t seed : {1, 2}) {
      results.push_back(run_lazy(*plan, options, LazyOrder::kRandom, seed));
      CHECK(results.back().losses == results[0].losses);
      CHECK(results.back().predictions == results[0].predictions);
      CHECK(results.back().digest == expected.digest);
    }
  }
  CHECK(results[0].losses != expected.losses);
  CHECK(results[0].losses[0] == Approx(expected.losses[0]).epsilon(1e-2));
}

TEST_CASE("an emulated link carries a device's inference") {
  const auto plan = plan_with(spec_to_serve("switch", 2), {lina()});
  RunOptions options = serving(*plan, 2);
  const RunResult expected = run_cpu(*plan, options);
  options.emulate_link = true;
  const RunResult result = run_lazy(*plan, options, LazyOrder::kRandom, 1);
  check_same(result, expected);
  CHECK(result.provenance == Provenance::kEmulated);
}

TEST_CASE("scores that are not numbers end a batch before its choices are estimated by") {
  const auto plan = plan_with(spec_to_serve("switch", 2), {lina()});
  RunOptions options = serving(*plan, 1);
  options.check_finite = false;
  options.init = [](uint64_t, uint64_t) { return std::nan(""); };
  CHECK_THROWS_WITH(
      run_lazy(*plan, options, LazyOrder::kRandom, 1),
      Contains("op b0.moe.gate") && Contains("the scores of token 0 must be numbers"));
  options.check_finite = true;  // what made them so is told
  CHECK_THROWS_WITH(run_lazy(*plan, options, LazyOrder::kRandom, 1),
                    Contains("op embed: this op produced the first number that is not finite"));
}

TEST_CASE("profiles that do not fit are refused on a device too") {
  const auto plan = plan_with(spec_to_serve("switch", 2), {lina()});
  const auto run = [&](const RunOptions& options) {
    return run_lazy(*plan, options, LazyOrder::kAsGiven, 1);
  };
  RunOptions options = serving(*plan, 1);
  options.infer.popularity = learnt(spec_to_serve("switch", 2), 1, 3);
  CHECK_THROWS_WITH(run(options),
                    Contains("popularity.path: the popularity profile has 3, but the plan has 2"));
}

}  // namespace
}  // namespace moe::test
