// The CUDA executor with the CUDA kernels' own sources, compiled for the host: from the plan to the
// trained parameters without a GPU. Streams are synchronous here; their order is tested in
// tests/exec on a device that runs late.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/exec/device/executor.h"
#include "tests/exec/support.h"

extern "C" const moe::kernels::DeviceTable* moe_cuda_device();

namespace moe::test {
namespace {

/// Against CPU ranks in double: losses and norms by a relative tolerance, routing exactly.
void check_close(const RunResult& device, const RunResult& cpu, double tolerance, bool adamw) {
  REQUIRE(device.losses.size() == cpu.losses.size());
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(std::abs(device.losses[step] / cpu.losses[step] - 1) < tolerance);
    for (size_t layer = 0; layer < cpu.moe[step].size(); ++layer) {
      CHECK(device.moe[step][layer].checksum == cpu.moe[step][layer].checksum);
      CHECK(device.moe[step][layer].dropped == cpu.moe[step][layer].dropped);
      CHECK(device.moe[step][layer].counts == cpu.moe[step][layer].counts);
    }
  }
  for (const auto& [name, norm] : cpu.grad_l2) {
    CAPTURE(name);
    CHECK(device.grad_l2.at(name) == Approx(norm).epsilon(100 * tolerance).margin(tolerance));
  }
  for (const auto& [name, norm] : cpu.param_l2) {
    CAPTURE(name);
    // The keys' bias has no gradient but what rounding makes, which AdamW scales up to a step.
    if (adamw && name.ends_with(".qkv.b")) continue;
    CHECK(device.param_l2.at(name) == Approx(norm).epsilon(tolerance).margin(tolerance));
  }
}

void check_emulated(PlanSpec spec, int64_t steps) {
  const auto plan = make_plan(spec);
  RunOptions options = options_of(*plan, steps);
  options.train.keep_grad_norms = true;
  options.test.poison = true;
  const RunResult device = make_device_executor(*moe_cuda_device())->run(*plan, options);
  spec.element_bytes = 8;
  const auto in_double = make_plan(spec);
  RunOptions reference = options_of(*in_double, steps);
  reference.train.keep_grad_norms = true;
  check_close(device, run_cpu(*in_double, reference), 1e-5,
              std::holds_alternative<Adamw>(spec.optimizer));
}

TEST_CASE("the executor trains with the CUDA kernels' sources as CPU ranks do in double") {
  const std::string gate = GENERATE("switch", "top2", "bpr", "expert_choice", "hash", "random");
  CAPTURE(gate);
  check_emulated(spec_of(small_model(gate), gate == "top2" ? 1 : 2), 3);
}

TEST_CASE("systems of other transfers, rows and orders train with the CUDA kernels' sources") {
  for (const auto& stages : std::vector<std::vector<Stage>>{
           {pass("dw_schedule")},
           {pass("irregular_a2a"), pass("used_rows")},
           {pass("capacity_pipeline", {{"degree", 2.0}})},
           {pass("irregular_a2a"), pass("used_rows"),
            pass("partition", {{"parts", 2.0}, {"before", 6.0}, {"after", 1.0}})}}) {
    CAPTURE(stages.size(), stages.back().name);
    PlanSpec spec = spec_of(small_model("switch", 4), 2);
    spec.system.stages = stages;
    check_emulated(spec, 2);
  }
}

TEST_CASE("all that a model may have trains with the CUDA kernels' sources") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {.coefficient = 0.5, .over = BalanceLossSpec::Over::kAll};
  model.z_loss = 0.25;
  model.bias_balance.rate = 0.01;
  PlanSpec spec = spec_of(model, 2);
  spec.optimizer = Adamw{.lr = 0.1};
  check_emulated(spec, 3);
}

TEST_CASE("plans that are edited for a device train as plain ones with the CUDA kernels' sources") {
  const auto executor = make_device_executor(*moe_cuda_device());
  for (const auto& stages : std::vector<std::vector<Stage>>{
           {},
           {pass("irregular_a2a"), pass("used_rows"),
            pass("partition", {{"parts", 2.0}, {"before", 6.0}, {"after", 1.0}})}}) {
    CAPTURE(stages.size());
    PlanSpec in_float = spec_of(small_model("switch", 4), 2);
    in_float.system.stages = stages;
    in_float.lowering.fuse_gelu = true;
    check_emulated(in_float, 1);
    PlanSpec spec = spec_of(small_model("switch", 4), 2, Precision::kBF16);
    spec.system.stages = stages;
    const auto plain = make_plan(spec);
    const RunResult anew = executor->run(*plain, options_of(*plain, 2));
    spec.lowering.round_once = true;
    const auto plan = make_plan(spec);
    const RunResult once = executor->run(*plan, options_of(*plan, 2));
    CHECK(once.losses == anew.losses);
    CHECK(once.digest == anew.digest);
  }
}

TEST_CASE("activations in bfloat16 train a model near double, routed as it is at first") {
  constexpr size_t kSteps = 3;  // the third is a replay
  const int64_t ranks = GENERATE(1, 2);
  CAPTURE(ranks);
  const Gpt2 model = small_model(ranks == 1 ? "switch" : "top2");
  PlanSpec spec = spec_of(model, ranks);
  const auto plan_in_float = make_plan(spec),
             plan = make_plan(spec_of(model, ranks, Precision::kBF16));
  const auto executor = make_device_executor(*moe_cuda_device());
  const RunResult in_float = executor->run(*plan_in_float, options_of(*plan_in_float, kSteps));
  RunOptions options = options_of(*plan, kSteps);
  const RunResult result = executor->run(*plan, options);
  options.test.poison = true;  // also keeps steps from being recorded
  const RunResult unrecorded = executor->run(*plan, options);
  spec.element_bytes = 8;
  const auto in_double = make_plan(spec);
  const RunResult reference = run_cpu(*in_double, options_of(*in_double, kSteps));

  REQUIRE(result.losses.size() == kSteps);
  for (size_t step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    CHECK(std::abs(result.losses[step] - reference.losses[step]) < 1e-2);
    CHECK(result.losses[step] != in_float.losses[step]);
  }
  CHECK(result.digest != in_float.digest);
  CHECK(result.digest == unrecorded.digest);
  for (size_t layer = 0; layer < reference.moe[0].size(); ++layer) {
    CHECK(result.moe[0][layer].checksum == reference.moe[0][layer].checksum);
    CHECK(result.moe[0][layer].counts == reference.moe[0][layer].counts);
  }
}

}  // namespace
}  // namespace moe::test
