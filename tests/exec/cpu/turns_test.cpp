#include <catch2/catch.hpp>
#include <mutex>

#include "engine/base/stop.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe {
namespace {

using Order = std::vector<std::pair<size_t, int64_t>>;  // run and step, as they ended

/// Runs of the small model with these numbers of steps; `order` receives the steps as they end.
std::vector<RunInTurns> runs_of(const Plan& plan, const std::vector<int64_t>& steps, Order& order) {
  std::vector<RunInTurns> runs;
  for (size_t i = 0; i < steps.size(); ++i) {
    RunOptions options = test::options_of(plan, steps[i]);
    options.on_step = [&order, i](int64_t step, double) {
      order.emplace_back(i, step);
      return true;
    };
    runs.push_back({&plan, "cpu", options});
  }
  return runs;
}

TEST_CASE("runs take turns of the given number of steps, and one that has ended takes none") {
  const auto plan = test::plan_of(test::spec_of(test::small_model(), 2));
  Order order;
  const auto results = run_in_turns(runs_of(*plan, {4, 6, 1}, order), 2);
  CHECK(
      order ==
      Order{
          {0, 0}, {1, 0}, {2, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {0, 3}, {1, 3}, {1, 4}, {1, 5}});
  for (const auto& [run, error] : results) CHECK((error == nullptr && run.ended));
}

TEST_CASE("a run computes the same in turns as alone") {
  const auto plan = test::plan_of(test::spec_of(test::small_model(), 2));
  Order order;
  const auto results = run_in_turns(runs_of(*plan, {3, 3}, order), 1);
  RunOptions alone = test::options_of(*plan, 3);
  const RunResult expected = run(*plan, "cpu", alone);
  for (const auto& [run, error] : results) {
    CHECK(test::same_run(expected, run.result));
  }
}

TEST_CASE("when a run fails in its turn, the others go on and the error is its own") {
  const auto plan = test::plan_of(test::spec_of(test::small_model(), 2));
  Order order;
  auto runs = runs_of(*plan, {3, 3, 3}, order);
  runs[0].options.data = nullptr;  // fails before its first step
  runs[1].options.on_step = [](int64_t step, double) -> bool {
    if (step == 1) throw RunError("lost");
    return true;
  };
  const auto results = run_in_turns(std::move(runs), 1);
  REQUIRE(results[0].error);
  CHECK_THROWS_AS(std::rethrow_exception(results[0].error), UserError);
  CHECK_FALSE(results[1].run.ended);
  CHECK(results[1].run.result.losses.size() == 2);
  CHECK(results[1].run.result.stop_reason == "lost");
  CHECK(order == Order{{2, 0}, {2, 1}, {2, 2}});
}

TEST_CASE("a request to stop reaches runs that wait for their turn") {
  const auto plan = test::plan_of(test::spec_of(test::small_model(), 2));
  Order order;
  auto runs = runs_of(*plan, {1000, 1000}, order);
  runs[0].options.on_step = [](int64_t step, double) {
    if (step == 2) request_stop();
    return true;
  };
  const auto results = run_in_turns(std::move(runs), 1);
  withdraw_stop();
  for (const auto& [run, error] : results) {
    CHECK(run.result.stopped);
    CHECK(run.result.losses.size() <= 3);
  }
}

}  // namespace
}  // namespace moe
