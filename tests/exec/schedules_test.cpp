// Random legal schedules of one program: whatever the lanes, the order and the timing, the numbers
// are the same bits.

#include <catch2/catch.hpp>

#include "engine/base/rng.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

void check_random_schedules(const Graph& graph, const PlanSpec& spec, uint64_t first_seed,
                            int count) {
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, options_of(*plain, 2));
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    INFO("seed " << seed);
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_schedule(graph, rng));
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = random_delays(seed);
    const RunResult result = run_cpu(*plan, options);
    REQUIRE(same_run(expected, result));
    for (const auto& rank : result.executed) REQUIRE(rank == plan->orders.lanes);
  }
}

TEST_CASE(
    "random legal schedules with ragged all-to-alls on 1 to 3 comm lanes, random delays "
    "and poisoned buffers give the bits of the plain order") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  check_random_schedules(ragged_step_graph(spec), spec, 1, 15);
}

void check_other_programs(int count) {
  const PlanSpec top2 = spec_of(small_model("top2"), 2);
  check_random_schedules(step_graph(top2), top2, 1000, count);

  PlanSpec bucketed = spec_of(small_model("expert_choice", 1), 4);
  bucketed.system.sync.bucket_bytes = 4096;
  check_random_schedules(ragged_step_graph(bucketed), bucketed, 2000, count);

  PlanSpec used = spec_of(small_model("switch"), 2);
  used.system.stages = {{.name = "irregular_a2a"}, {.name = "used_rows"}};
  check_random_schedules(make_plan(used)->graph, used, 4000, count);

  PlanSpec cut = spec_of(small_model("switch"), 2);
  cut.system.stages = {{.name = "capacity_pipeline", .options = {{"degree", 2.0}}}};
  check_random_schedules(make_plan(cut)->graph, cut, 5000, count);

  Gpt2 unfused = small_model("bpr");
  unfused.fused_attention = false;
  const PlanSpec in_double = spec_of(unfused, 2, Precision::kF64);
  check_random_schedules(ragged_step_graph(in_double), in_double, 3000, count);
}

TEST_CASE("random schedules of other programs give the bits of their plain order") {
  check_other_programs(3);
}

TEST_CASE("four times as many random schedules give the bits of the plain order", "[slow]") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  check_random_schedules(ragged_step_graph(spec), spec, 16, 45);
  check_other_programs(6);
}

TEST_CASE("carrying only the rows in use changes no bit, and fewer bytes travel") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const auto full = plan_of(spec, step_graph(spec)),
             ragged = plan_of(spec, ragged_step_graph(spec));
  const RunResult a = run_cpu(*full, options_of(*full, 3));
  const RunResult b = run_cpu(*ragged, options_of(*ragged, 3));
  CHECK(same_run(a, b));
  const auto bytes = [](const RunResult& r, const Graph& graph, const std::string& name) {
    Bytes sum = 0;
    for (const Span& span : r.timelines[0].spans) {
      if (graph.op(span.op).name == name) sum += span.bytes;
    }
    return sum;
  };
  CHECK(bytes(b, ragged->graph, "b1.moe.a2a_1") < bytes(a, full->graph, "b1.moe.a2a_1"));
}

}  // namespace
}  // namespace moe::test
