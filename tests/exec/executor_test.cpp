// What a run on CPU ranks returns beside the reference's numbers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "engine/graph/op_def.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

TEST_CASE("the bytes that a rank holds are the bytes that the simulator reports") {
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    PlanSpec spec = spec_of(small_model("top2"), 2, precision);
    spec.system.sync.bucket_bytes = 1 << 14;
    const auto plan = plan_of(spec);
    const RunResult executed = run_cpu(*plan, options_of(*plan, 1));
    CHECK(executed.peak_bytes == plan->memory.peak_bytes());
    CHECK(executed.peak_bytes == moe::run(*plan, "simulate", {}).peak_bytes);
  }
}

TEST_CASE("what an executor leaves out of its result is named with the executor") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  const ExecutorDef& def = executor_def("simulate");
  RunResult result = moe::run(*plan, "simulate", {});
  CHECK_NOTHROW(check_steps(def, result));
  const auto refused = [&](auto& list) {
    auto kept = std::exchange(list, {});
    CHECK_THROWS_WITH(check_steps(def, result), Catch::Contains("executor 'simulate' returned"));
    list = std::move(kept);
  };
  refused(result.metrics);
  refused(result.timelines);
  refused(result.bounds);
}

TEST_CASE(
    "every op of every rank has one span in its lane's order, and data comes before its use") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  const RunResult result = run_cpu(*plan, options_of(*plan, 2));
  REQUIRE(result.timelines.size() == 2);
  const Dependencies deps = dependencies(plan->graph);
  for (const Timeline& timeline : result.timelines) {
    CHECK(timeline.spans.size() == 2 * plan->graph.num_ops());
    CHECK(timeline.provenance == Provenance::kMeasured);
    std::vector<std::vector<const Span*>> by_rank(2,
                                                  std::vector<const Span*>(plan->graph.num_ops()));
    for (const Span& span : timeline.spans) {
      by_rank[static_cast<size_t>(span.rank)][span.op.index()] = &span;
      CHECK(span.post >= 0);
      CHECK(span.post <= span.begin);
      CHECK(span.begin <= span.end);
    }
    for (const auto& spans : by_rank) {
      for (size_t i = 0; i < spans.size(); ++i) {
        REQUIRE(spans[i] != nullptr);
        for (const OpId before : deps.preds[i]) {
          CHECK(spans[before.index()]->end <= spans[i]->post);
        }
      }
    }
  }
}

TEST_CASE("a collective begins at the same time on all ranks, when the last one has posted") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  const RunResult result = run_cpu(*plan, options_of(*plan, 1));
  std::map<OpId, std::vector<const Span*>> collectives;
  for (const Span& span : result.timelines[0].spans) {
    if (plan->graph.def(span.op).lane == LaneKind::kComm) collectives[span.op].push_back(&span);
  }
  REQUIRE(!collectives.empty());
  for (const auto& [op, spans] : collectives) {
    INFO(plan->graph.op(op).name);
    REQUIRE(spans.size() == 2);
    CHECK(spans[0]->begin == spans[1]->begin);
    CHECK(spans[0]->begin == std::max(spans[0]->post, spans[1]->post));
  }
}

TEST_CASE("routing statistics count what was kept and what was dropped") {
  Gpt2 model = small_model("switch", 2);
  model.capacity_factor = 0.5;
  const auto plan = plan_of(spec_of(model, 2));
  const RunResult result = run_cpu(*plan, options_of(*plan, 2));
  const int64_t tokens = 2 * 2 * model.seq;
  for (const auto& layers : result.moe) {
    REQUIRE(layers.size() == 1);
    const MoeStats& stats = layers[0];
    CHECK(stats.layer == 1);
    CHECK(stats.capacity == 2);  // 0.5 * 16 tokens / 4 experts
    CHECK(stats.counts.size() == 2 * 4);
    int64_t kept = 0;
    for (const int64_t n : stats.counts) {
      CHECK(n <= stats.capacity);
      kept += n;
    }
    CHECK(kept + stats.dropped == tokens);
    CHECK(stats.dropped >= tokens - 2 * 4 * 2);
    CHECK(stats.min_margin > 0);
  }
}

TEST_CASE("a gate that keeps no token gives every expert nothing and still trains") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  RunOptions options = options_of(*plan, 2);
  options.policies.gate = [](int64_t) {
    Gate gate = builtin_gate("switch");
    gate.route = [](const GateInput&, RoutingBuilder&) {};
    return gate;
  };
  options.train.keep_grad_norms = true;
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.moe[0][0].counts == std::vector<int64_t>(8, 0));
  CHECK(result.grad_l2.at("b1.ex.fc1.w") == 0);
  CHECK(result.grad_l2.at("b1.attn.qkv.w") > 0);
}

TEST_CASE("each rank makes its own gate and sees its own tokens") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  RunOptions options = options_of(*plan, 1);
  std::array<std::vector<int64_t>, 2> first_tokens;
  options.policies.gate = [&](int64_t rank) {
    Gate gate = builtin_gate("switch");
    const auto route = gate.route;
    gate.route = [&first_tokens, rank, route](const GateInput& in, RoutingBuilder& out) {
      first_tokens[static_cast<size_t>(rank)].push_back(in.first_token);
      route(in, out);
    };
    return gate;
  };
  run_cpu(*plan, options);
  CHECK(first_tokens[0] == std::vector<int64_t>{0});
  CHECK(first_tokens[1] == std::vector<int64_t>{2 * 8});
}

TEST_CASE("evaluation is the mean loss of its batches and changes nothing") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  const RunResult trained = run_cpu(*plan, options_of(*plan, 3));
  RunOptions options = options_of(*plan, 3);
  options.train.eval_batches = 2;
  options.train.eval_data = options.data;
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.digest == trained.digest);
  CHECK(result.losses == trained.losses);
  CHECK(result.timelines.size() == 3);
  // Untrained, the mean over batches 0 and 1 is the mean of two separate first losses.
  options.steps = 0;
  const double untrained = run_cpu(*plan, options).eval_loss;
  RunOptions first = options_of(*plan, 1), second = first;
  second.first_step = 1;
  CHECK(untrained ==
        Approx((run_cpu(*plan, first).losses[0] + run_cpu(*plan, second).losses[0]) / 2)
            .epsilon(1e-14));
  CHECK(result.eval_loss < untrained);
}

TEST_CASE("an emulated link slows the transfers, says so, and changes no number") {
  PlanSpec spec = spec_of(small_model(), 2);
  spec.cluster.intra.latency_ns = 200'000;
  const auto plan = plan_of(spec);
  RunOptions options = options_of(*plan, 2);
  const RunResult direct = run_cpu(*plan, options);
  options.emulate_link = true;
  const RunResult emulated = run_cpu(*plan, options);
  CHECK(emulated.provenance == Provenance::kEmulated);
  CHECK(emulated.digest == direct.digest);
  for (const Span& span : emulated.timelines[1].spans) {
    if (plan->graph.def(span.op).lane == LaneKind::kCompute) continue;
    CHECK(span.end - span.begin >= 400'000);
  }
  // Each step has the links' own: both ports of either rank carry something while transfers run.
  CHECK(direct.timelines[1].links.empty());
  for (const Timeline& step : emulated.timelines) {
    std::map<std::string, double> bytes;
    Nanoseconds end = 0;
    for (const Span& span : step.spans) end = std::max(end, span.end);
    for (const LinkSpan& span : step.links) {
      CHECK(span.begin >= 0);
      CHECK(span.end <= end);
      CHECK(span.bytes_per_s <= span.capacity * (1 + 1e-9));
      bytes[span.name] += span.bytes_per_s * static_cast<double>(span.end - span.begin) / 1e9;
    }
    CHECK(bytes.size() == 4);
    for (const auto& [name, carried] : bytes) CHECK(carried > 0);
  }
}

}  // namespace
}  // namespace moe::test
