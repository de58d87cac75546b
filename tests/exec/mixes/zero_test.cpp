// Optimizer states that are sharded over ranks (zero = 1): the same numbers with less memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// A model whose parameters have sizes that 4 ranks do not divide, some fewer elements than ranks.
Gpt2 odd_model(int64_t ep, const std::string& gate = "top2") {
  Gpt2 model = small_model(gate, 2);
  model.vocab = 31;
  model.hidden = 14;
  model.ep = ep;
  return model;
}

std::shared_ptr<const Plan> plan_with_zero(PlanSpec spec, int64_t zero,
                                           std::vector<Stage> stages = {}) {
  if (zero > 0) stages.push_back(pass("zero"));
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

int count(const Graph& graph, Collective which) {
  return static_cast<int>(std::count_if(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    return graph.def(op).collective == which;
  }));
}

/// Sums of squares are added up in another order.
constexpr Tolerance kSharded = {.losses = 0, .norms = 1e-12};

TEST_CASE("sharded states train to the bits of whole ones, in groups, buckets and precisions") {
  const OptimizerSpec optimizer =
      GENERATE(OptimizerSpec(Sgd{.lr = 0.1, .momentum = 0.9}), OptimizerSpec(Adamw{.lr = 0.01}));
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    for (const int64_t ranks : {2, 4}) {
      for (int64_t ep = ranks; ep >= 1; ep /= 2) {
        CAPTURE(ranks, ep, optimizer.index());
        PlanSpec spec = spec_of(odd_model(ep), ranks, precision);
        spec.optimizer = optimizer;
        spec.system.sync.bucket_bytes = ep == 1 ? 0 : 4096;
        const auto whole = plan_with_zero(spec, 0), sharded = plan_with_zero(spec, 1);
        CHECK(count(sharded->graph, Collective::kAllReduce) == 0);
        CHECK(count(sharded->graph, Collective::kReduceScatter) ==
              count(whole->graph, Collective::kAllReduce));
        CHECK(count(sharded->graph, Collective::kAllGather) ==
              count(whole->graph, Collective::kAllReduce));
        CHECK(same_run(run_with_norms(*whole, 4), run_with_norms(*sharded, 4), kSharded));
      }
    }
  }
}

TEST_CASE("a lane of the reductions' own takes both halves of what was an all-reduce") {
  PlanSpec spec = spec_of(odd_model(0, "switch"), 4);
  spec.system.sync = {.bucket_bytes = 4096, .lane = ReduceLane::kOwn};
  const auto plan = plan_with_zero(spec, 1, {pass("priority")});
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    if (!is_sync(plan->graph.def(OpId(static_cast<int64_t>(i))).payload)) continue;
    CHECK(plan->schedule.lanes[plan->schedule.lane_of[i].index()].name == "comm_reduce");
  }
}

TEST_CASE("ranks that meet late give the same bits with sharded states") {
  PlanSpec spec = spec_of(odd_model(2), 4);
  spec.system.sync.lane = ReduceLane::kOwn;
  const auto plan = plan_with_zero(spec, 1);
  const RunResult expected = run_cpu(*plan, options_of(*plan, 2));
  for (uint64_t seed = 0; seed < 5; ++seed) {
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = random_delays(seed);
    CHECK(same_run(expected, run_cpu(*plan, options)));
  }
}

TEST_CASE("a rank holds its share of the states, and sends no more than for an all-reduce") {
  PlanSpec spec = spec_of(small_model("switch", 2), 4);
  spec.optimizer = Adamw{};
  change_model(spec, [](Gpt2& m) { m.ep = 2; });
  const auto whole = plan_with_zero(spec, 0), sharded = plan_with_zero(spec, 1);
  Bytes less = 0;
  for (const Tensor& t : whole->graph.tensors()) {
    if (t.kind != TensorKind::kState) continue;
    const Tensor& slice = sharded->graph.tensor(sharded->graph.find_tensor(t.name));
    const int64_t n = t.held.moe ? 2 : 4, elements = num_elements(t.shape);
    INFO(t.name);
    CHECK(slice.shape == Shape{(elements + n - 1) / n});
    const auto stored = [](int64_t all) {
      return (all * 4 + kAlignment - 1) / kAlignment * kAlignment;
    };
    less += stored(elements) - stored(slice.shape[0]);
  }
  CHECK(less > 0);
  CHECK(whole->memory.persistent_bytes - sharded->memory.persistent_bytes == less);
  const auto sent = [](const Plan& plan) {
    Bytes bytes = 0;
    const RunResult result = run_cpu(plan, options_of(plan, 1));
    for (const Span& span : result.timelines[0].spans) {
      if (is_sync(plan.graph.def(span.op).payload)) bytes += span.bytes;
    }
    return bytes;
  };
  // Slices of tensors that the ranks do not divide are padded.
  CHECK(static_cast<double>(sent(*sharded)) == Approx(sent(*whole)).epsilon(0.01));
}

TEST_CASE("a run goes on from a checkpoint of another ZeRO stage, on other numbers of ranks") {
  const std::string path = "zero_checkpoint_test";
  const auto plan = [](int64_t zero, int64_t ranks, int64_t ep) {
    Gpt2 model = odd_model(ep);
    model.batch_per_device = 8 / ranks;
    PlanSpec spec = spec_of(model, ranks, Precision::kF64);
    spec.optimizer = Adamw{.lr = 0.01};
    return plan_with_zero(spec, zero);
  };
  for (const int64_t zero : {0, 1}) {
    const auto first = plan(zero, 4, 2);
    RunOptions options = options_of(*first, 2);
    options.train.checkpoints.write_to = path;
    const RunResult written = run_cpu(*first, options);
    const RunResult straight = run_cpu(*first, options_of(*first, 4));
    const auto resumed = [&](const Plan& with, int64_t steps) {
      RunOptions again = options_of(with, steps);
      again.train.checkpoints.resume_from = path;
      return run_cpu(with, again);
    };
    CHECK(resumed(*plan(1 - zero, 4, 2), 2).digest == straight.digest);
    for (const int64_t ranks : {1, 2, 4}) {
      for (int64_t ep = ranks; ep >= 1; ep /= 2) {
        CAPTURE(zero, ranks, ep);
        const auto other = plan(1, ranks, ep);
        CHECK(resumed(*other, 0).digest == written.digest);
        CHECK(same_run(resumed(*plan(0, ranks, ep), 2), resumed(*other, 2), kSharded));
      }
    }
  }
  std::remove(path.c_str());
}

TEST_CASE("one rank has nothing to shard, and inference refuses it") {
  const PlanSpec spec = spec_of(small_model("switch", 2), 1);
  CHECK(plan_with_zero(spec, 1)->hash == plan_with_zero(spec, 0)->hash);
  PlanSpec inference = spec_of(small_model("switch", 2), 2);
  inference.inference = true;
  plan_with_zero(inference, 0);
  CHECK_THROWS_WITH(plan_with_zero(inference, 1),
                    Catch::Contains("'zero'") && Catch::Contains("a forward pass only"));
}

}  // namespace
}  // namespace moe::test
