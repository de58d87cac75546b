// Runs that must not go on: who is named, and that everybody stops.
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <limits>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/exec/check_options.h"
#include "engine/exec/run_loop.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;

std::string message_of(const Plan& plan, const RunOptions& options) {
  try {
    run_cpu(plan, options);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "(no error)";
}

std::shared_ptr<const Plan> small_plan(int64_t num_ranks) {
  return plan_of(spec_of(small_model(), num_ranks));
}

/// Initial values as the reference's, but for one element.
ParamInit with_one(uint64_t parameter, uint64_t element, double value) {
  return [=](uint64_t i, uint64_t t) {
    return t == parameter && i == element ? value : reference_init(i, t);
  };
}

uint64_t number_of(const Plan& plan, const std::string& name) {
  const std::vector<ParamInfo> all = plan.spec.model->parameters;
  for (size_t t = 0; t < all.size(); ++t) {
    if (all[t].name == name) return t;
  }
  return all.size();
}

TEST_CASE("a NaN in a parameter is told by the first op that reads it, with rank and step") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  options.init = with_one(number_of(*plan, "b0.attn.out.w"), 3, nan);
  const std::string message = message_of(*plan, options);
  CHECK_THAT(message, Contains("step 0, op b0.attn.out: this op produced the first number"));
  CHECK_THAT(message, Contains("of tensor b0.attn.out is nan"));
}

TEST_CASE("an infinity that only one rank's expert holds is told with that rank") {
  const auto plan = small_plan(2);  // experts 0, 1 and 2, 3
  RunOptions options = options_of(*plan, 3);
  const int64_t per_expert = 64 * 16;
  options.init = with_one(number_of(*plan, "b1.ex.fc1.w"), static_cast<uint64_t>(3 * per_expert),
                          std::numeric_limits<double>::infinity());
  CHECK_THAT(message_of(*plan, options), Contains("rank 1, step 0, op b1.moe.fc1: "));
}

TEST_CASE("a learning rate that overflows is stopped at a later step, with results before it") {
  PlanSpec spec = spec_of(small_model(), 1);
  spec.optimizer = Sgd{.lr = 1e30};
  const auto plan = plan_of(spec);
  RunOptions options = options_of(*plan, 50);
  std::vector<double> seen;
  options.on_step = [&](int64_t, double loss) {
    seen.push_back(loss);
    return true;
  };
  try {
    run_cpu(*plan, options);
    FAIL("it went on");
  } catch (const RunFailed& failed) {
    CHECK_THAT(failed.what(), Contains("produced the first number that is not finite"));
    const RunResult& kept = *failed.so_far;
    CHECK(kept.stop_reason == failed.what());
    CHECK(kept.stopped);
    REQUIRE(!seen.empty());
    CHECK(kept.losses == seen);
    CHECK(kept.metrics.size() == seen.size());
    CHECK(kept.moe.size() == seen.size());
    CHECK(kept.timelines.size() == seen.size());
  }
  for (const double loss : seen) CHECK(std::isfinite(loss));
}

TEST_CASE("a run that fails in its first step has no results to keep") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 3);
  options.init =
      with_one(number_of(*plan, "b0.attn.out.w"), 3, std::numeric_limits<double>::quiet_NaN());
  try {
    run_cpu(*plan, options);
    FAIL("it went on");
  } catch (const RunFailed&) {
    FAIL("of which step?");
  } catch (const RunError& error) {
    CHECK_THAT(error.what(), Contains("step 0, op b0.attn.out"));
  }
}

TEST_CASE("without check_finite a NaN goes through to the loss") {
  const auto plan = small_plan(1);
  RunOptions options = options_of(*plan, 1);
  options.check_finite = false;
  options.init = with_one(number_of(*plan, "wte"), 0, std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(run_cpu(*plan, options).losses.at(0)));
}

TEST_CASE("a gate that throws on one rank stops all ranks at once and names rank, step and op") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 5);
  options.timeout_s = 60;
  options.policies.gate = [](int64_t rank) {
    Gate gate = builtin_gate("switch");
    const auto route = gate.route;
    gate.route = [rank, route](const GateInput& in, RoutingBuilder& out) {
      if (rank == 1 && in.step == 2) throw user_error("policy 'mine': no such expert");
      route(in, out);
    };
    return gate;
  };
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_cpu(*plan, options);
    FAIL("it went on");
  } catch (const InputFailed& failed) {  // a UserError, with the two steps before
    CHECK(failed.so_far->losses.size() == 2);
    CHECK(failed.so_far->stop_reason == failed.what());
    CHECK(failed.so_far->wrong_input);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(message_of(*plan, options) ==
        "rank 1, step 2, op b1.moe.gate: policy 'mine': no such expert");
}

TEST_CASE("an error of the caller's own function arrives as it was thrown") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 5);
  options.on_step = [](int64_t, double) -> bool { throw std::out_of_range("mine"); };
  CHECK_THROWS_AS(run_cpu(*plan, options), std::out_of_range);
}

TEST_CASE("a rank that never posts is named by the watchdog") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 1);
  options.timeout_s = 0.2;
  const OpId late = plan->graph.find_op("b1.moe.gate");
  options.test.delay_ns = [late](int64_t rank, OpId op, int64_t) -> Nanoseconds {
    return rank == 1 && op == late ? 1'000'000'000 : 0;
  };
  CHECK_THAT(message_of(*plan, options), Contains("rank 1 did not arrive in 0.2 s"));
}

TEST_CASE("on_step ends the run on all ranks after its step") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 10);
  options.on_step = [](int64_t step, double) { return step < 2; };
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.stopped);
  CHECK(result.losses.size() == 3);
  CHECK(result.digest == run_cpu(*plan, options_of(*plan, 3)).digest);
}

TEST_CASE("a request to stop ends a running run, and when withdrawn not the next one") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 10);
  options.on_step = [](int64_t step, double) {
    if (step == 1) request_stop();
    return true;
  };
  const RunResult stopped = run_cpu(*plan, options);
  CHECK(stopped.stopped);
  CHECK(stopped.losses.size() == 2);
  withdraw_stop();
  options.on_step = nullptr;
  CHECK_FALSE(run_cpu(*plan, options).stopped);
}

TEST_CASE("a request to stop ends an evaluation behind its batch") {
  const auto plan = small_plan(2);
  RunOptions options = options_of(*plan, 1);
  options.train.eval_batches = 1000000;
  options.train.eval_data = [&data = options.data](int64_t step, int64_t rank, int32_t* ids,
                                                   int32_t* targets) {
    if (step == 1) request_stop();
    data(step, rank, ids, targets);
  };
  const RunResult result = run_cpu(*plan, options);
  withdraw_stop();
  CHECK(result.stopped);
  CHECK(result.losses.size() == 1);
}

TEST_CASE("a plan for floats of another size is refused") {
  const auto plan = small_plan(1);
  RunOptions options = options_of(*plan, 1);
  options.precision = Precision::kF64;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("make the plan with element_bytes = 8"));
}

TEST_CASE("matrix products of bfloat16 are refused on CPU ranks") {
  const auto plan = small_plan(1);
  RunOptions options = options_of(*plan, 1);
  options.precision = Precision::kBF16;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("bf16 needs the executor cuda"));
}

TEST_CASE("a run without data, or to evaluate without data, is refused") {
  const auto plan = small_plan(1);
  RunOptions options = options_of(*plan, 1);
  options.train.eval_batches = 2;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("eval_data is not set"));
  options.data = nullptr;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("a run needs it"));
}

TEST_CASE("a rank takes of the host's memory what its executor says") {
  Plan plan = *small_plan(2);
  const RunOptions options = options_of(plan, 1);
  plan.memory.arena_bytes = Bytes{1} << 60;
  CHECK_THROWS_WITH(run_cpu(plan, options),
                    Contains("2 ranks need 2147483648.0 GiB of host memory, but this process "));
  CHECK_NOTHROW(check_options(plan, options, plan.memory.persistent_bytes));
}

TEST_CASE("a link of another number of devices is refused") {
  PlanSpec spec = spec_of(small_model(), 2);
  spec.cluster.devices_per_node = 4;
  const auto plan = plan_of(spec);
  RunOptions options = options_of(*plan, 1);
  options.emulate_link = true;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("has 4 devices, but the plan has 2 ranks"));
}

TEST_CASE("an unknown executor is told with the ones there are") {
  const auto plan = small_plan(1);
  CHECK_THROWS_WITH(moe::run(*plan, "cpus", options_of(*plan, 1)),
                    Contains("unknown executor 'cpus'") && Contains("cpu") && Contains("simulate"));
}

}  // namespace
}  // namespace moe::test
