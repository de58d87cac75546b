// Runs with a pace: their numbers are those of other runs, and their times follow from the CPU time
// of each op, whichever rank had a core when.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/op_def.h"
#include "engine/run.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;

RunOptions paced(const Plan& plan, int64_t steps, double pace) {
  RunOptions options = options_of(plan, steps);
  options.emulate_link = true;
  options.pace = pace;
  return options;
}

bool is_comm(const Plan& plan, OpId op) {
  return plan.graph.def(op).collective != Collective::kNone;
}

/// The spans of a rank, indexed by op.
std::vector<Span> spans_of(const Timeline& timeline, const Plan& plan, int32_t rank) {
  std::vector<Span> spans(plan.graph.num_ops());
  for (const Span& span : timeline.spans) {
    if (span.rank == rank) spans[span.op.index()] = span;
  }
  return spans;
}

OpId first_comm(const Plan& plan) {
  for (const std::vector<OpId>& lane : plan.orders.lanes) {
    if (is_comm(plan, lane[0])) return lane[0];
  }
  return {};
}

Nanoseconds compute_sum(const Timeline& timeline, const Plan& plan, int32_t rank) {
  Nanoseconds sum = 0;
  for (const Span& span : timeline.spans) {
    if (span.rank == rank && !is_comm(plan, span.op)) sum += span.end - span.begin;
  }
  return sum;
}

TEST_CASE("a pace changes no number, also of lanes that choose at run time") {
  PlanSpec spec = spec_of(small_model("top2"), 4);
  const Graph graph = step_graph(spec);
  Rng rng(7);
  for (const Schedule& schedule : {default_schedule(graph), random_schedule(graph, rng),
                                   random_discipline(spec, graph, rng)}) {
    const auto plan = make_plan_of(spec, graph, schedule);
    const RunResult plain = run_cpu(*plan, options_of(*plan, 3));
    const RunResult result = run_cpu(*plan, paced(*plan, 3, 3));
    CHECK(result.provenance == Provenance::kEmulated);
    CHECK(same_run(plain, result));
    CHECK(plain.ranks[0][0].behind_ns == 0);
    for (const Timeline& timeline : result.timelines) {
      CHECK(timeline.spans.size() >= 4 * plan->graph.num_ops());
    }
  }
}

TEST_CASE("with a pace every op begins exactly when its lane and its inputs are ready") {
  const auto plan = plan_of(spec_of(small_model(), 4));
  const RunResult result = run_cpu(*plan, paced(*plan, 2, 2.5));
  const Dependencies deps = dependencies(plan->graph);
  for (const Timeline& timeline : result.timelines) {
    std::vector<Nanoseconds> posted(plan->graph.num_ops());
    for (const Span& s : timeline.spans) {
      posted[s.op.index()] = std::max(posted[s.op.index()], s.post);
    }
    for (int32_t rank = 0; rank < 4; ++rank) {
      const std::vector<Span> spans = spans_of(timeline, *plan, rank);
      for (const std::vector<OpId>& lane : plan->orders.lanes) {
        Nanoseconds free = 0;
        for (const OpId op : lane) {
          const Span& span = spans[op.index()];
          Nanoseconds ready = free;
          for (const OpId before : deps.preds[op.index()]) {
            ready = std::max(ready, spans[before.index()].end);
          }
          for (const OpId before : plan->waits[op.index()]) {
            ready = std::max(ready, spans[before.index()].end);
          }
          INFO(plan->graph.op(op).name);
          CHECK(span.post == ready);
          CHECK(span.begin == (is_comm(*plan, op) ? posted[op.index()] : ready));
          CHECK(span.end >= span.begin);
          free = span.end;
        }
      }
    }
  }
}

TEST_CASE("with a pace the times of ops are their CPU time, and those of transfers the link's") {
  constexpr double kPace = 20;
  PlanSpec spec = spec_of(small_model(), 4);
  spec.cluster.intra = {.bytes_per_s = 1e8, .latency_ns = 30'000};
  const auto plan = plan_of(spec);
  RunOptions options = paced(*plan, 2, kPace);
  const RunResult result = run_cpu(*plan, options);
  options.pace = 0;
  const RunResult plain = run_cpu(*plan, options);
  const auto carried = [](const Timeline& timeline) {
    double bytes = 0;
    for (const LinkSpan& s : timeline.links) {
      bytes += s.bytes_per_s * static_cast<double>(s.end - s.begin) / kNsPerSecond;
    }
    return bytes;
  };
  for (size_t step = 0; step < 2; ++step) {
    const Timeline& timeline = result.timelines[step];
    for (int32_t rank = 0; rank < 4; ++rank) {
      const Nanoseconds cpu = result.ranks[step][static_cast<size_t>(rank)].cpu_ns;
      const Nanoseconds sum = compute_sum(timeline, *plan, rank);
      CHECK(sum > 0);
      CHECK(sum <= cpu);
      for (const Span& span : spans_of(timeline, *plan, rank)) {
        if (!is_comm(*plan, span.op)) continue;
        const Nanoseconds model = collective_ns(spec.cluster, plan->graph, span.op, {});
        INFO(plan->graph.op(span.op).name);
        CHECK(span.end - span.begin >= model - 1);
        CHECK(span.end - span.begin <= model + cpu);
      }
    }
    for (const LinkSpan& link : timeline.links) CHECK(link.capacity == Approx(1e8));
    CHECK(carried(timeline) == Approx(carried(plain.timelines[step])).epsilon(0.01));
  }
}

TEST_CASE("with a pace the other ranks wait for a delayed one, for as long as it is delayed") {
  constexpr Nanoseconds kDelay = 40'000'000;
  const auto plan = plan_of(spec_of(small_model(), 4));
  RunOptions options = paced(*plan, 1, 4);
  const OpId first = plan->orders.lanes[0][0], exchange = first_comm(*plan);
  options.test.delay_ns = [=](int64_t rank, OpId op, int64_t) {
    return rank == 2 && op == first ? kDelay : 0;
  };
  const RunResult result = run_cpu(*plan, options);
  std::vector<Span> at;
  for (int32_t rank = 0; rank < 4; ++rank) {
    at.push_back(spans_of(result.timelines[0], *plan, rank)[exchange.index()]);
  }
  CHECK(spans_of(result.timelines[0], *plan, 2)[first.index()].begin == kDelay);
  CHECK(spans_of(result.timelines[0], *plan, 1)[first.index()].begin == 0);
  for (const size_t rank : {0, 1, 3}) {
    CHECK(at[rank].post < at[2].post);
    CHECK(at[rank].begin == at[2].post);
  }
  CHECK(at[2].begin == at[2].post);
  CHECK(at[2].post >= kDelay);
}

TEST_CASE("with a pace the rank that gets all rows computes them while the others wait") {
  Gpt2 model = small_model("switch", 8);
  model.hidden = 64;
  model.capacity_factor = 4;  // one expert has room for all tokens
  PlanSpec spec = spec_of(model, 4);
  spec.system.stages = {pass("irregular_a2a"), pass("used_rows")};
  const auto plan = make_plan(spec);
  RunOptions options = paced(*plan, 2, 4);
  options.policies.gate = [](int64_t) {
    Gate gate = builtin_gate("switch");
    gate.route = [](const GateInput& in, RoutingBuilder& out) {
      for (int64_t t = 0; t < in.tokens; ++t) out.take(t, 2);
    };
    return gate;
  };
  const RunResult result = run_cpu(*plan, options);
  CHECK(result.moe[1][0].load == std::vector<int64_t>{0, 0, 4 * 8 * 8, 0});
  CHECK(result.metrics[1].expert_imbalance() > 2);
  std::map<int32_t, Nanoseconds> waited;
  for (const Span& span : result.timelines[1].spans) {
    const Op& op = plan->graph.op(span.op);
    const bool back =
        is_comm(*plan, span.op) && op.rows.to == RowUse::To::kSource && op.phase == Phase::kForward;
    if (back) waited[span.rank] += span.begin - span.post;
  }
  REQUIRE(waited.size() == 4);
  CHECK(waited[2] == 0);
  for (const int32_t rank : {0, 1, 3}) CHECK(waited[rank] > 0);
}

TEST_CASE("a failure ends a run with a pace although other ranks are held") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  RunOptions options = paced(*plan, 1, 1000);
  const OpId first = plan->orders.lanes[0][0];
  options.test.delay_ns = [=](int64_t rank, OpId op, int64_t) -> Nanoseconds {
    return rank == 1 && op == first ? 3'600'000'000'000 : 0;
  };
  options.policies.gate = [](int64_t) {
    Gate gate = builtin_gate("switch");
    gate.route = [](const GateInput&, RoutingBuilder&) { throw run_error("no gate"); };
    return gate;
  };
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("no gate"));
}

TEST_CASE("a pace makes the watchdog wait longer") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  RunOptions options = paced(*plan, 1, 4);
  options.timeout_s = 1;  // 4 s on the clock
  options.test.delay_ns = [&](int64_t rank, OpId op, int64_t) -> Nanoseconds {
    return rank == 1 && op == plan->orders.lanes[0][0] ? 500'000'000 : 0;  // 2 s on the clock
  };
  CHECK_NOTHROW(run_cpu(*plan, options));
}

TEST_CASE("a pace needs an emulated link and has a range") {
  const auto plan = plan_of(spec_of(small_model(), 2));
  RunOptions options = paced(*plan, 1, 0.5);
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("pace: 0.5 is not allowed; give 1 to 1000"));
  options.pace = 1001;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("pace: 1001 is not allowed"));
  options.pace = 2;
  options.emulate_link = false;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Contains("pace: 2 needs an emulated link"));
}

}  // namespace
}  // namespace moe::test
