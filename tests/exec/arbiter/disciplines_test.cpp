// Steps whose comm lanes pick, share a network, cut transfers and hold them back: the numbers are
// those of the plain schedule, and every run ends.

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;

using Chunk = std::tuple<Nanoseconds, OpId, int32_t>;  // begin, op, chunk

/// Every chunk once on every rank, in order; what an op waits for is over before it is posted; an
/// arbiter's transfers follow each other, on all ranks in one order.
void check_legal_run(const Plan& plan, const Timeline& timeline) {
  std::map<std::pair<int32_t, OpId>, std::vector<Span>> spans;
  for (const Span& s : timeline.spans) spans[{s.rank, s.op}].push_back(s);
  const Dependencies deps = dependencies(plan.graph);
  for (auto& [key, chunks] : spans) {
    const auto& [rank, op] = key;
    std::sort(chunks.begin(), chunks.end(),
              [](const Span& a, const Span& b) { return a.chunk < b.chunk; });
    REQUIRE(static_cast<int64_t>(chunks.size()) == num_chunks(plan.graph, plan.schedule, op));
    for (size_t c = 0; c < chunks.size(); ++c) {
      REQUIRE(chunks[c].chunk == static_cast<int32_t>(c));
      REQUIRE(chunks[c].post <= chunks[c].begin);
      REQUIRE(chunks[c].begin <= chunks[c].end);
      if (c > 0) REQUIRE(chunks[c].post == chunks[c - 1].end);
    }
    for (const OpId before : deps.preds[op.index()]) {
      for (const Span& s : spans.at({rank, before})) REQUIRE(s.end <= chunks[0].post);
    }
  }
  REQUIRE(spans.size() == plan.graph.num_ops() * static_cast<size_t>(plan.graph.num_ranks));
  REQUIRE(take_turns(plan, timeline));
}

RunOptions options_with_eval(const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.train.eval_batches = 1;
  options.train.eval_data = options.data;
  options.timeout_s = 60;
  return options;
}

void check_random_disciplines(const Graph& graph, const PlanSpec& spec, uint64_t first_seed,
                              int count) {
  const auto plain = plan_of(spec, graph);
  const RunResult expected = run_cpu(*plain, options_with_eval(*plain, 2));
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(count); ++seed) {
    INFO("seed " << seed);
    Rng rng(seed);
    const auto plan = make_plan_of(spec, graph, random_discipline(spec, graph, rng));
    RunOptions options = options_with_eval(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = random_delays(seed);
    const RunResult result = run_cpu(*plan, options);
    REQUIRE(same_run(expected, result));
    for (const Timeline& timeline : result.timelines) check_legal_run(*plan, timeline);
  }
}

TEST_CASE("random disciplines, chunks, priorities and holds give the bits of the plain schedule") {
  PlanSpec spec = spec_of(small_model("switch"), 2);
  check_random_disciplines(ragged_step_graph(spec), spec, 1, 10);
  spec.system.sync.bucket_bytes = 4096;  // all-reduces of several tensors
  check_random_disciplines(step_graph(spec), spec, 100, 10);
  const PlanSpec alone = spec_of(small_model("switch"), 1);
  check_random_disciplines(ragged_step_graph(alone), alone, 150, 3);
  const PlanSpec in_double = spec_of(small_model("bpr", 1), 4, Precision::kF64);
  check_random_disciplines(ragged_step_graph(in_double), in_double, 200, 5);
  PlanSpec used = spec_of(small_model("switch"), 2);
  used.system.stages = {{.name = "irregular_a2a"}, {.name = "used_rows"}};
  check_random_disciplines(make_plan(used)->graph, used, 300, 5);
}

/// Lane "comm" by priority: all-to-alls first, all-reduces in chunks of a quarter.
Schedule a2a_first(const Graph& graph, Pick pick = Pick::kPriority) {
  Schedule schedule = default_schedule(graph);
  schedule.lanes[1].pick = pick;
  schedule.lanes[1].stage = "mine";
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op = OpId(static_cast<int64_t>(i));
    if (graph.def(op).collective == Collective::kAllToAll) schedule.set_priority(op, 1);
    if (graph.def(op).collective == Collective::kAllReduce) {
      schedule.set_chunk(graph, op, (message_bytes(graph, op) + 3) / 4);
    }
  }
  return schedule;
}

TEST_CASE("200 steps with ops late by up to 20% on 2 to 4 ranks all end, with the plain bits") {
  for (const auto& [num_ranks, steps] : {std::pair{2, 70}, {3, 65}, {4, 65}}) {
    Gpt2 model = small_model("switch", 1);
    model.experts = 12;
    const PlanSpec spec = spec_of(model, num_ranks);
    const Graph graph = step_graph(spec);
    const auto plain = plan_of(spec, graph);
    const RunResult expected = run_cpu(*plain, options_of(*plain, steps));
    std::vector<Nanoseconds> took(graph.num_ops());
    for (const Span& s : expected.timelines.back().spans) took[s.op.index()] = s.end - s.begin;
    const auto plan = make_plan_of(spec, graph, a2a_first(graph));
    RunOptions options = options_of(*plan, steps);
    options.timeout_s = 60;
    options.test.delay_ns = [&](int64_t rank, OpId op, int64_t step) {
      const auto n = static_cast<uint64_t>((step * 4 + rank) * 4096 + op.value);
      return took[op.index()] * static_cast<Nanoseconds>(random24(n, 5) % 1000) / 5000;
    };
    CHECK(same_run(expected, run_cpu(*plan, options)));
  }
}

TEST_CASE("on an emulated link an arbiter's transfers follow each other without a gap") {
  PlanSpec spec = spec_of(small_model("switch"), 2);
  spec.cluster.intra = {.bytes_per_s = 2e7, .latency_ns = 10'000};
  const Graph graph = step_graph(spec);
  const auto plan = make_plan_of(spec, graph, a2a_first(graph));
  RunOptions options = options_of(*plan, 2);
  options.emulate_link = true;
  const RunResult result = run_cpu(*plan, options);
  size_t followed = 0;
  for (const Timeline& timeline : result.timelines) {
    check_legal_run(*plan, timeline);
    std::map<OpId, Nanoseconds> ready;  // on the last rank
    for (const Span& s : timeline.spans) {
      if (s.chunk == 0) ready[s.op] = std::max(ready[s.op], s.post);
    }
    Nanoseconds free = 0;
    for (const Span& s : timeline.spans) {
      if (s.rank != 0 || s.lane != LaneId(1)) continue;
      REQUIRE(s.begin == std::max(free, ready[s.op]));
      followed += s.begin == free;
      free = s.end;
    }
  }
  CHECK(followed > 50);
}

TEST_CASE("a policy of the run takes the place of the lane's own, and sees only what is ready") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  Schedule schedule = a2a_first(graph, Pick::kPolicy);
  schedule.lanes[1].choose = [](std::span<const OpId>) { return OpId(); };
  const auto plan = make_plan_of(spec, graph, schedule);
  RunOptions options = options_of(*plan, 2);
  std::vector<LaneId> asked;
  std::vector<OpId> chosen;
  options.policies.choose = [&](LaneId lane) -> Choose {
    asked.push_back(lane);
    return [&](std::span<const OpId> ready) {
      chosen.push_back(ready.back());
      return ready.back();
    };
  };
  const RunResult result = run_cpu(*plan, options);
  CHECK(asked == std::vector<LaneId>{LaneId(1)});
  const auto plain = plan_of(spec, graph);
  CHECK(same_run(run_cpu(*plain, options_of(*plain, 2)), result));
  for (const Timeline& timeline : result.timelines) check_legal_run(*plan, timeline);
  std::vector<OpId> run;
  for (const Timeline& timeline : result.timelines) {
    for (const Span& s : timeline.spans) {
      if (s.rank == 0 && s.lane == LaneId(1)) run.push_back(s.op);
    }
  }
  CHECK(run == chosen);
}

std::string message_with(const Choose& choose) {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  Schedule schedule = a2a_first(graph, Pick::kPolicy);
  schedule.lanes[1].choose = choose;
  const auto plan = make_plan_of(spec, graph, schedule);
  try {
    run_cpu(*plan, options_of(*plan, 2));
  } catch (const RunError& e) {
    return e.what();
  }
  return "(no error)";
}

TEST_CASE("a policy that names no op, or one that is not ready, ends the run with lane and stage") {
  const OpId first(0);
  CHECK_THAT(message_with([=](auto) { return first; }),
             Contains("rank 0, step 0, op b1.moe.a2a_1: lane 'comm' (stage 'mine'): its pick "
                      "function returned op 'embed', which is not ready"));
  CHECK_THAT(message_with([](auto) { return OpId(1'000'000); }), Contains("which is not ready"));
  CHECK_THAT(message_with([](auto) { return OpId(); }),
             Contains("its pick function returned no op, although 'b1.moe.a2a_1' is ready"));
  CHECK_THAT(message_with([](auto) -> OpId { throw run_error("policy 'x': too slow"); }),
             Contains("rank 0, step 0, op b1.moe.a2a_1: policy 'x': too slow"));
}

TEST_CASE("a rank that does not post is told with what it waits for") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  const auto plan = make_plan_of(spec, graph, a2a_first(graph));
  RunOptions options = options_of(*plan, 1);
  options.timeout_s = 0.2;
  const OpId late = graph.find_op("b1.moe.gate");
  options.test.delay_ns = [late](int64_t rank, OpId op, int64_t) -> Nanoseconds {
    return rank == 1 && op == late ? 600'000'000 : 0;
  };
  CHECK_THROWS_WITH(
      run_cpu(*plan, options),
      Contains("rank 0, step 0, op b1.moe.a2a_1: rank 1 did not post this op within 0.2 s; "
               "rank 1 waits for b1.moe.dispatch"));
}

TEST_CASE("an op that fails on one rank ends lanes with an arbiter at once") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  const auto plan = make_plan_of(spec, graph, a2a_first(graph));
  RunOptions options = options_of(*plan, 5);
  options.policies.gate = [](int64_t rank) {
    Gate gate = builtin_gate("switch");
    const auto route = gate.route;
    gate.route = [rank, route](const GateInput& in, RoutingBuilder& out) {
      if (rank == 1 && in.step == 2) throw user_error("policy 'mine': no such expert");
      route(in, out);
    };
    return gate;
  };
  CHECK_THROWS_WITH(run_cpu(*plan, options),
                    "rank 1, step 2, op b1.moe.gate: policy 'mine': no such expert");
}

TEST_CASE("transfers in chunks on a lane in order are a span each, one after another") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = step_graph(spec);
  const auto plain = plan_of(spec, graph);
  const auto plan = make_plan_of(spec, graph, a2a_first(graph, Pick::kOrder));
  const RunResult result = run_cpu(*plan, options_of(*plan, 2));
  CHECK(same_run(run_cpu(*plain, options_of(*plain, 2)), result));
  for (const auto& rank : result.executed) CHECK(rank == plan->orders.lanes);
  for (const Timeline& timeline : result.timelines) check_legal_run(*plan, timeline);
}

}  // namespace
}  // namespace moe::test
