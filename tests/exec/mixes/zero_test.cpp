// Optimizer states that are sharded over ranks (zero = 1): the same numbers with less memory.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <set>

#include "engine/base/errors.h"
#include "engine/exec/parameters.h"
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

std::shared_ptr<const Plan> plan_with(PlanSpec spec, int64_t zero, std::vector<Stage> stages = {}) {
  if (zero > 0) stages.push_back(pass("zero"));
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

int count(const Graph& graph, Collective which) {
  return static_cast<int>(std::count_if(graph.ops().begin(), graph.ops().end(), [&](const Op& op) {
    return graph.def(op).collective == which;
  }));
}

void check_same_sharded(const RunResult& whole, const RunResult& sharded) {
  CHECK(sharded.losses == whole.losses);
  CHECK(sharded.digest == whole.digest);
  REQUIRE(sharded.grad_l2.size() == whole.grad_l2.size());
  for (const auto& [name, norm] : whole.grad_l2) {  // sums of squares, added up in another order
    INFO(name);
    CHECK(sharded.grad_l2.at(name) == Approx(norm).epsilon(1e-12));
    CHECK(sharded.grad_projection.at(name) ==
          Approx(whole.grad_projection.at(name)).epsilon(1e-9).margin(1e-9));
  }
}

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
        const auto whole = plan_with(spec, 0), sharded = plan_with(spec, 1);
        CHECK(count(sharded->graph, Collective::kAllReduce) == 0);
        CHECK(count(sharded->graph, Collective::kReduceScatter) ==
              count(whole->graph, Collective::kAllReduce));
        CHECK(count(sharded->graph, Collective::kAllGather) ==
              count(whole->graph, Collective::kAllReduce));
        check_same_sharded(run_with_norms(*whole, 4), run_with_norms(*sharded, 4));
      }
    }
  }
}

TEST_CASE("systems with sharded states train to the bits of those with whole ones") {
  const std::vector<std::vector<Stage>> systems = {
      {pass("serial")},
      {pass("irregular_a2a"), pass("used_rows"),
       pass("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 1.0}}), pass("dw_schedule")},
      {pass("priority"), pass("chunked", {{"bytes", 1000.0}, {"which", std::string("both")}})},
      {pass("fixed")},
      {pass("capacity_pipeline", {{"degree", 2.0}}), pass("blocking_a2a")},
      {pass("prophet", {{"hidden", 1.0}, {"split", true}}), pass("prophet_schedule"),
       pass("blocking_a2a", {{"experts", false}})},
      {pass("swap"), pass("serial")},
      {pass("eplb"), pass("serial")}};
  const ReduceLane lane = GENERATE(ReduceLane::kWithAllToAlls, ReduceLane::kOwn);
  for (const ReducePlace place : {ReducePlace::kAfter, ReducePlace::kReady}) {
    for (const std::vector<Stage>& stages : systems) {
      CAPTURE(stages[0].name, place, lane);
      PlanSpec spec = spec_of(odd_model(0, "switch"), 4);
      spec.optimizer = Adamw{.lr = 0.01};
      spec.system.sync = {.bucket_bytes = 4096, .place = place, .lane = lane};
      const auto whole = plan_with(spec, 0, stages), sharded = plan_with(spec, 1, stages);
      for (size_t i = 0; i < sharded->graph.num_ops(); ++i) {
        const Collective kind = sharded->graph.def(OpId(static_cast<int64_t>(i))).collective;
        if (!reduces(kind) || lane == ReduceLane::kWithAllToAlls) continue;
        CHECK(sharded->schedule.lanes[sharded->schedule.lane_of[i].index()].name == "comm_reduce");
      }
      check_same_sharded(run_with_norms(*whole, 3), run_with_norms(*sharded, 3));
    }
  }
}

TEST_CASE("ranks that meet late give the same bits with sharded states") {
  PlanSpec spec = spec_of(odd_model(2), 4);
  spec.system.sync.lane = ReduceLane::kOwn;
  const auto plan = plan_with(spec, 1);
  const RunResult expected = run_cpu(*plan, options_of(*plan, 2));
  for (int64_t seed = 0; seed < 5; ++seed) {
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = [seed](int64_t rank, OpId op, int64_t) {
      return (seed * 31 + rank * 17 + op.value) % 7 == 0 ? Nanoseconds{40'000} : Nanoseconds{0};
    };
    CHECK(run_cpu(*plan, options).digest == expected.digest);
  }
}

TEST_CASE("a rank holds its share of the states, and sends no more than for an all-reduce") {
  PlanSpec spec = spec_of(small_model("switch", 2), 4);
  spec.optimizer = Adamw{};
  change_model(spec, [](Gpt2& m) { m.ep = 2; });
  const auto whole = plan_with(spec, 0), sharded = plan_with(spec, 1);
  Bytes less = 0;
  for (const Tensor& t : whole->graph.tensors()) {
    if (t.kind != TensorKind::kState) continue;
    const Tensor& slice = sharded->graph.tensor(sharded->graph.find_tensor(t.name));
    const int64_t n = t.expert ? 2 : 4, elements = num_elements(t.shape);
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
      if (reduces(plan.graph.def(span.op).collective)) bytes += span.bytes;
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
    return plan_with(spec, zero);
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
        check_same_sharded(resumed(*plan(0, ranks, ep), 2), resumed(*other, 2));
      }
    }
  }
  std::remove(path.c_str());
}

TEST_CASE("one rank has nothing to shard, and inference refuses it") {
  const PlanSpec spec = spec_of(small_model("switch", 2), 1);
  CHECK(plan_with(spec, 1)->hash == plan_with(spec, 0)->hash);
  PlanSpec inference = spec_of(small_model("switch", 2), 2);
  inference.inference = true;
  plan_with(inference, 0);
  CHECK_THROWS_WITH(plan_with(inference, 1),
                    Catch::Contains("'zero'") && Catch::Contains("a forward pass only"));
}

}  // namespace
}  // namespace moe::test
