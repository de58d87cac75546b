// Random legal schedules of one program: whatever the lanes, the order and the timing, the numbers
// are the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/rng.h"
#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// Half the ops of a rank are late by up to 50 us; which ones depends on everything.
Nanoseconds random_delay(uint64_t seed, int64_t rank, OpId op, int64_t step) {
  const auto n = static_cast<uint64_t>((step * 4 + rank) * 4096 + op.value);
  const auto drawn = static_cast<Nanoseconds>(random24(n, seed) % 100'000);
  return std::max<Nanoseconds>(0, drawn - 50'000);
}

struct Bits {
  uint64_t digest;
  std::vector<double> losses;
  bool operator==(const Bits&) const = default;
};

Bits bits_of(const RunResult& result) {
  return {result.digest, result.losses};
}

void check_random_schedules(const Graph& graph, const PlanSpec& spec, uint64_t first_seed,
                            int count) {
  const auto plain = plan_of(spec, graph);
  const Bits expected = bits_of(run_cpu(*plain, options_of(*plain, 2)));
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    INFO("seed " << seed);
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_schedule(graph, rng));
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = [seed](int64_t rank, OpId op, int64_t step) {
      return random_delay(seed, rank, op, step);
    };
    const RunResult result = run_cpu(*plan, options);
    REQUIRE(bits_of(result) == expected);
    for (const auto& rank : result.executed) REQUIRE(rank == plan->orders.lanes);
  }
}

TEST_CASE(
    "200 random legal schedules with ragged all-to-alls on 1 to 3 comm lanes, random delays "
    "and poisoned buffers give the bits of the plain order") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  check_random_schedules(ragged_step_graph(spec), spec, 1, 200);
}

TEST_CASE("random schedules of other programs give the bits of their plain order") {
  const PlanSpec top2 = spec_of(small_model("top2"), 2);
  check_random_schedules(step_graph(top2), top2, 1000, 10);

  PlanSpec bucketed = spec_of(small_model("expert_choice", 1), 4);
  bucketed.system.sync.bucket_bytes = 4096;
  check_random_schedules(ragged_step_graph(bucketed), bucketed, 2000, 10);

  PlanSpec used = spec_of(small_model("switch"), 2);
  used.system.stages = {{.name = "irregular_a2a"}, {.name = "used_rows"}};
  check_random_schedules(make_plan(used)->graph, used, 4000, 10);

  PlanSpec cut = spec_of(small_model("switch"), 2);
  cut.system.stages = {{.name = "capacity_pipeline", .options = {{"degree", 2.0}}}};
  check_random_schedules(make_plan(cut)->graph, cut, 5000, 10);

  Gpt2 unfused = small_model("bpr");
  unfused.fused_attention = false;
  const PlanSpec in_double = spec_of(unfused, 2, Precision::kF64);
  check_random_schedules(ragged_step_graph(in_double), in_double, 3000, 10);
}

TEST_CASE("systems with other transfers, rows and orders train the same model") {
  const std::vector<std::vector<Stage>> systems = {
      {{.name = "serial"}},
      {{.name = "dw_schedule"}},
      {{.name = "irregular_a2a"}},
      {{.name = "irregular_a2a"}, {.name = "used_rows"}, {.name = "dw_schedule"}},
      {{.name = "capacity_pipeline", .options = {{"degree", 2.0}}}, {.name = "blocking_a2a"}}};
  PlanSpec spec = spec_of(small_model("top2"), 2, Precision::kF64);
  const auto plain = plan_of(spec);
  const RunResult expected = run_cpu(*plain, options_of(*plain, 3));
  for (const std::vector<Stage>& stages : systems) {
    spec.system.stages = stages;
    const auto plan = make_plan(spec);
    const RunResult result = run_cpu(*plan, options_of(*plan, 3));
    INFO("system of " << stages.size() << " stages, the first " << stages[0].name);
    for (size_t step = 0; step < 3; ++step) {
      CHECK(result.losses[step] == Approx(expected.losses[step]).epsilon(1e-13));
      CHECK(result.moe[step][0].checksum == expected.moe[step][0].checksum);
    }
    for (const auto& [name, norm] : expected.param_l2) {
      CHECK(result.param_l2.at(name) == Approx(norm).epsilon(1e-12));
    }
  }
}

TEST_CASE("carrying only the rows in use changes no bit, and fewer bytes travel") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const auto full = plan_of(spec, step_graph(spec)),
             ragged = plan_of(spec, ragged_step_graph(spec));
  const RunResult a = run_cpu(*full, options_of(*full, 3));
  const RunResult b = run_cpu(*ragged, options_of(*ragged, 3));
  CHECK(bits_of(a) == bits_of(b));
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
