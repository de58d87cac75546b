// Activations in bfloat16 on a device: the kernels that compute are the double reference, rounded
// once where a result is stored (tests/mixed).
#include <catch2/catch.hpp>
#include <limits>

#include "engine/graph/op_def.h"
#include "engine/ops/ops.h"
#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

PlanSpec mixed_spec(const Gpt2& model, int64_t ranks, std::vector<Stage> stages = {}) {
  PlanSpec spec = spec_of(model, ranks, Precision::kBF16);
  spec.system.stages = std::move(stages);
  return spec;
}

/// Losses and gradients are near those of float32, and the bits the same in every order of the
/// streams.
void check_mixed(const PlanSpec& spec, int64_t steps) {
  const auto plan = make_plan(spec);
  PlanSpec plain = spec_of(gpt2_of(spec), spec.num_ranks, Precision::kF32);
  change_model(plain, [&](Gpt2& m) { m.dtype = DType::kF32; });
  plain.optimizer = spec.optimizer;
  const auto in_float = make_plan(plain);
  RunOptions options = options_of(*in_float, steps);
  options.train.keep_grad_norms = true;
  const RunResult near = run_cpu(*in_float, options);
  options.precision = Precision::kBF16;
  const RunResult expected = run_lazy(*plan, options, LazyOrder::kAsGiven, 1);
  REQUIRE(expected.losses.size() == near.losses.size());
  for (size_t i = 0; i < near.losses.size(); ++i) {
    CAPTURE(i, near.losses[i]);
    CHECK(expected.losses[i] == Approx(near.losses[i]).epsilon(1e-2));
  }
  CHECK(expected.losses != near.losses);
  for (const auto& [name, norm] : near.grad_l2) {
    CAPTURE(name);
    CHECK(expected.grad_l2.at(name) == Approx(norm).epsilon(5e-2));
  }
  options.test.poison = true;
  for (const uint64_t seed : {1, 2}) {
    CHECK(same_run(expected, run_lazy(*plan, options, LazyOrder::kRandom, seed)));
  }
}

TEST_CASE("all that a model may have trains with activations in bfloat16 on a device") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {.coefficient = 0.5, .over = BalanceLossSpec::Over::kAll};
  model.z_loss = 0.25;
  model.bias_balance.rate = 0.01;
  PlanSpec routed = mixed_spec(model, 2);
  routed.optimizer = Adamw{.lr = 0.1};
  check_mixed(routed, 2);

  Gpt2 unfused = small_model("switch", 2);
  unfused.fused_attention = false;
  unfused.ep = 2;
  PlanSpec groups = mixed_spec(unfused, 4, {pass("irregular_a2a"), pass("used_rows")});
  groups.system.sync.lane = ReduceLane::kOwn;
  groups.system.sync.bucket_bytes = 4096;
  check_mixed(groups, 2);
}

TEST_CASE("of a step in bfloat16 parameters, gates and statistics are float32, activations not") {
  const Graph graph = step_graph(mixed_spec(small_model("top2"), 2));
  int64_t narrow = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op& op = graph.op(id);
    CAPTURE(op.name);
    for (const TensorId t : op.outputs) {
      const Tensor& tensor = graph.tensor(t);
      CAPTURE(tensor.name);
      const bool of_tokens = tensor.shape.size() > 1 && tensor.shape.back() >= small_model().hidden;
      if (op.is_dw || op.phase == Phase::kUpdate) CHECK(tensor.dtype != DType::kBF16);
      if (tensor.dtype == DType::kBF16) CHECK((of_tokens && ++narrow > 0));
    }
    const OpDef& def = graph.def(op);
    if (def.collective == Collective::kAllToAll) {
      CHECK(graph.tensor(op.inputs[0]).dtype == DType::kBF16);
    }
    if (def.collective == Collective::kNone && stores_bf16(graph, op)) CHECK(def.run.bf16);
  }
  CHECK(narrow > 20);
  for (const Tensor& tensor : graph.tensors()) {
    if (tensor.kind != TensorKind::kParam && tensor.kind != TensorKind::kState) continue;
    CHECK(tensor.dtype == DType::kF32);
  }
}

TEST_CASE("a plan in bfloat16 keeps less memory, and runs in no other precision than its own") {
  const auto mixed = make_plan(mixed_spec(small_model("switch"), 2));
  const auto in_float = make_plan(spec_of(small_model("switch"), 2));
  CHECK(mixed->memory.persistent_bytes == in_float->memory.persistent_bytes);
  CHECK(mixed->memory.arena_bytes < 0.8 * static_cast<double>(in_float->memory.arena_bytes));
  RunOptions options = options_of(*in_float, 1);
  options.precision = Precision::kBF16;
  CHECK_THROWS_WITH(run_lazy(*in_float, options, LazyOrder::kAsGiven, 1),
                    Contains("precision: bf16 needs a plan whose model.dtype is bf16, but the "
                             "plan's is f32"));
  options = options_of(*mixed, 1);
  options.precision = Precision::kF32;
  CHECK_THROWS_WITH(run_lazy(*mixed, options, LazyOrder::kAsGiven, 1),
                    Contains("make the plan with element_bytes = 4"));
  // On the CPU a model's bf16 is computed in float32.
  PlanSpec named = spec_of(small_model("switch"), 2);
  change_model(named, [&](Gpt2& m) { m.dtype = DType::kBF16; });
  const auto as_float = make_plan(named);
  CHECK(run_cpu(*as_float, options_of(*as_float, 2)).losses ==
        run_cpu(*in_float, options_of(*in_float, 2)).losses);
}

TEST_CASE("the first number that is not finite is found in bfloat16 as well") {
  const auto plan = make_plan(mixed_spec(small_model("switch"), 1));
  RunOptions options = options_of(*plan, 1);
  options.init = [](uint64_t element, uint64_t parameter) {
    return element == 3 && parameter == 0 ? std::numeric_limits<double>::infinity() : 0.5;
  };
  CHECK_THROWS_WITH(run_lazy(*plan, options, LazyOrder::kAsGiven, 1),
                    Contains("op head: this op produced the first number that is not finite"));
}

}  // namespace
}  // namespace moe::test
