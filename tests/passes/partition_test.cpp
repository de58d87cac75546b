// Lancet's partition: the search against exhaustive ones, what it cuts against the event engine.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/graph/verify.h"
#include "engine/passes/partition/axes.h"
#include "engine/passes/partition/cut_range.h"
#include "engine/passes/partition/range_search.h"
#include "tests/passes/fixture.h"

using Catch::Contains;

namespace moe::test {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

/// The least total of groups [at, num_groups), by trying all covers.
Nanoseconds least_of_all_covers(const RangeProblem& problem, size_t at) {
  if (at == problem.num_groups) return 0;
  Nanoseconds least = kNever;
  const size_t furthest = std::min(problem.furthest(at), problem.num_groups);
  for (size_t end = at + 1; end <= furthest; ++end) {
    const Nanoseconds rest = least_of_all_covers(problem, end);
    std::vector<int64_t> parts = problem.parts;
    parts.push_back(1);
    for (const int64_t k : parts) {
      if (k > 1 && !problem.has_transfer(at, end)) continue;
      const auto ns = problem.range_ns(at, end, k);
      if (ns && rest != kNever) least = std::min(least, *ns + rest);
    }
  }
  return least;
}

TEST_CASE("the dynamic programme finds the least of all covers") {
  Rng rng(7);
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(trial);
    const auto groups = static_cast<size_t>(1 + rng.below(8));
    std::vector<Nanoseconds> table(9 * 9 * 5);
    for (Nanoseconds& ns : table) ns = rng.below(50);
    // From some length on a range cannot be cut; the more parts, the sooner.
    std::vector<size_t> reach(9);
    for (size_t& r : reach) r = static_cast<size_t>(rng.below(9));
    const auto iota = static_cast<size_t>(1 + rng.below(8));
    const RangeProblem problem = {
        groups,
        [&](size_t begin) { return begin + iota; },
        {2, 3, 4},
        [trial](size_t begin, size_t end) { return trial % 2 == 0 || (begin + end) % 3 != 0; },
        [&](size_t begin, size_t end, int64_t parts) -> std::optional<Nanoseconds> {
          const auto k = static_cast<size_t>(parts);
          if (parts > 1 && end + k > begin + reach[begin]) return std::nullopt;
          const auto longer = static_cast<Nanoseconds>(parts == 1 ? 20 * (end - begin) : 0);
          return table[(begin * 9 + end) * 5 + k] + longer;
        }};
    const RangeResult result = choose_ranges(problem);
    CHECK(result.total_ns == least_of_all_covers(problem, 0));
    Nanoseconds sum = 0;
    size_t at = 0;
    for (const RangeChoice& c : result.ranges) {
      CHECK(c.begin == at);
      CHECK(c.end <= c.begin + iota);
      sum += problem.range_ns(c.begin, c.end, c.parts).value();
      at = c.end;
    }
    CHECK(at == groups);
    CHECK(sum == result.total_ns);
  }
}

TEST_CASE("groups are runs of ops of at least the length asked for, the last one what is left") {
  const auto ends = [](std::vector<Nanoseconds> ns, Nanoseconds least, std::vector<size_t> alone) {
    std::vector<bool> marked(ns.size());
    for (const size_t i : alone) marked[i] = true;
    return group_ends(ns, least, marked);
  };
  CHECK(ends({3, 3, 3, 10, 1}, 6, {}) == std::vector<size_t>{2, 4, 5});
  CHECK(ends({3, 1}, 0, {}) == std::vector<size_t>{1, 2});
  CHECK(ends({}, 5, {}).empty());
  CHECK(ends({3, 3, 1, 3, 3}, 6, {2}) == std::vector<size_t>{2, 3, 5});
  CHECK(ends({1, 1, 1, 1}, 6, {0, 2}) == std::vector<size_t>{1, 2, 3, 4});
}

/// Costs drawn from what an op is and how large it is: parts and wholes are unrelated, as the worst
/// profile could have them.
std::shared_ptr<const CostModel> random_cost(uint64_t seed, Nanoseconds comm, Nanoseconds compute) {
  return std::make_shared<GivenCost>([=](const Graph& graph, OpId op) -> Nanoseconds {
    if (is_view(graph, graph.op(op))) return 0;
    const uint64_t drawn = random24(std::hash<std::string>()(op_signature(graph, op)), seed);
    const bool comm_op = graph.def(op).lane == LaneKind::kComm;
    return 1 + static_cast<Nanoseconds>(drawn) % (comm_op ? comm : compute);
  });
}

/// Costs that grow with what an op makes, at a rate drawn for its kind, plus a launch of 2.
std::shared_ptr<const CostModel> growing_cost(uint64_t seed, double comm, double compute) {
  return std::make_shared<GivenCost>([=](const Graph& graph, OpId id) -> Nanoseconds {
    const Op& op = graph.op(id);
    if (is_view(graph, op)) return 0;
    const bool comm_op = graph.def(op).lane == LaneKind::kComm;
    const uint64_t drawn = random24(std::hash<std::string>()(graph.def(op).name), seed);
    double elements = 0;
    for (const TensorId t : op.outputs) {
      elements += static_cast<double>(num_elements(graph.tensor(t).shape));
    }
    elements *= pieces(graph, op).empty() ? op.rows.share.value_or(1) : 0;
    const double rate = (comm_op ? comm : compute) * static_cast<double>(drawn % 500 + 500) / 1000;
    return 2 + static_cast<Nanoseconds>(elements * rate);
  });
}

const std::vector<Stage>& counted_rows() {
  static const std::vector<Stage> stages = {stage("irregular_a2a"), stage("used_rows")};
  return stages;
}

PlanSpec counted_spec(std::vector<Stage> more, std::shared_ptr<const CostModel> cost,
                      int64_t layers = 2) {
  std::vector<Stage> stages = counted_rows();
  stages.insert(stages.end(), more.begin(), more.end());
  PlanSpec spec = small_spec(std::move(stages));
  change_model(spec, [&](Gpt2& m) { m.layers = layers; });
  spec.cost = std::move(cost);
  return spec;
}

std::vector<OpId> forward_of(const Graph& graph) {
  std::vector<OpId> ops;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (graph.op(op).phase == Phase::kForward) ops.push_back(op);
  }
  return ops;
}

Nanoseconds forward_end(const Plan& plan) {
  Nanoseconds end = 0;
  for (const Span& span : simulate(plan).spans) {
    if (plan.graph.op(span.op).phase == Phase::kForward) end = std::max(end, span.end);
  }
  return end;
}

TEST_CASE("a range in parts takes as long alone as in the simulated step") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const double parts : {2, 3, 4}) {
      CAPTURE(seed, parts);
      const auto cost = random_cost(seed, 40, 20);
      const auto whole = make_plan(counted_spec({}, cost));
      const std::vector<OpId> program = forward_of(whole->graph);
      const auto plan = make_plan(counted_spec(
          {stage("partition", {{"parts", parts}, {"before", 4.0}, {"after", 1.0}})}, cost));
      const OpId dispatch = whole->graph.find_op("b1.moe.dispatch");
      const OpId combine = whole->graph.find_op("b1.moe.combine");
      const auto at = [&](OpId op) {
        return static_cast<size_t>(std::find(program.begin(), program.end(), op) - program.begin());
      };
      const size_t begin = at(dispatch) - 4, end = at(combine) + 2;
      CutRange range{begin, end, static_cast<int64_t>(parts), {}};
      range.axes = AxisSolver(whole->graph, program, 4).solve(begin, end, range.parts);
      REQUIRE(range.axes.found);
      RangeCutter cutter(whole->graph, program, 4, 8);
      const std::vector<OpId> made = cutter.cut(range);
      const std::span<const OpId> ops = program;
      const Nanoseconds expected = pipeline_ns(whole->graph, ops.first(begin), *cost) +
                                   pipeline_ns(cutter.graph(), made, *cost) +
                                   pipeline_ns(whole->graph, ops.subspan(end), *cost);
      CHECK(forward_end(*plan) == expected);
    }
  }
}

TEST_CASE("the forward is as short as the best of all covers cut for real") {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const auto cost = random_cost(seed, 60, 20);
    const auto whole = make_plan(counted_spec({}, cost));
    const std::vector<OpId> program = forward_of(whole->graph);
    const AxisSolver solver(whole->graph, program, 4);
    const std::span<const OpId> ops = program;
    std::map<std::tuple<size_t, size_t, int64_t>, std::optional<Nanoseconds>> known;
    const auto range_ns = [&](size_t begin, size_t end, int64_t k) -> std::optional<Nanoseconds> {
      if (k == 1) return pipeline_ns(whole->graph, ops.subspan(begin, end - begin), *cost);
      const auto [at, fresh] = known.try_emplace({begin, end, k});
      if (!fresh) return at->second;
      const CutRange range{begin, end, k, solver.solve(begin, end, k)};
      if (!range.axes.found) return std::nullopt;
      RangeCutter cutter(whole->graph, program, 4, 8);
      const std::vector<OpId> made = cutter.cut(range);
      at->second = pipeline_ns(cutter.graph(), made, *cost);
      return at->second;
    };
    std::vector<Nanoseconds> least(program.size() + 1, kNever);
    least[program.size()] = 0;
    for (size_t begin = program.size(); begin-- > 0;) {
      for (size_t end = begin + 1; end <= program.size(); ++end) {
        const auto comm = [&](OpId op) { return whole->graph.def(op).lane == LaneKind::kComm; };
        const auto range = ops.subspan(begin, end - begin);
        const bool transfer = std::any_of(range.begin(), range.end(), comm);
        for (const int64_t k : {1, 2, 3}) {
          if (k > 1 && !transfer) continue;
          const auto ns = range_ns(begin, end, k);
          if (ns) least[begin] = std::min(least[begin], *ns + least[end]);
        }
      }
    }
    const auto plan = make_plan(counted_spec(
        {stage("partition", {{"groups", 0.0}, {"max_range", 4.0}, {"max_parts", 3.0}})}, cost));
    // A transfer may begin before the range that it belongs to: the step is never slower.
    CHECK(forward_end(*plan) <= least[0]);
    CHECK(forward_end(*plan) >= least[0] - 60);
  }
}

TEST_CASE("Lancet is never slower than either half of it alone") {
  int faster = 0, cut = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const auto cost = seed % 4 == 0 ? random_cost(seed, 200, 40)
                                    : growing_cost(seed, 0.05 * static_cast<double>(seed), 0.5);
    const Stage part = stage("partition", {{"max_parts", 3.0}}), dw = stage("dw_schedule");
    const auto both = make_plan(counted_spec({part, dw}, cost, 4));
    const Nanoseconds with_both = makespan(*both);
    const Nanoseconds only_part = makespan(*make_plan(counted_spec({part}, cost, 4)));
    const Nanoseconds only_dw = makespan(*make_plan(counted_spec({dw}, cost, 4)));
    CHECK(with_both <= only_part);
    CHECK(with_both <= only_dw);
    faster += with_both < std::min(only_part, only_dw) ? 1 : 0;
    cut += both->stages[2].changed ? 1 : 0;
  }
  CHECK(faster > 30);
  CHECK(cut > 30);
}

TEST_CASE("a gate that needs the whole batch is never cut, and forcing it is refused") {
  for (const char* gate : {"bpr", "top2", "expert_choice"}) {
    CAPTURE(gate);
    PlanSpec spec = counted_spec({stage("partition")}, growing_cost(3, 1.0, 1.0));
    change_model(spec, [&](Gpt2& m) { m.gate = gate; });
    const auto plan = make_plan(spec);
    CHECK(plan->graph.find_op("b1.moe.gate").valid());
    CHECK(plan->graph.find_op("b1.moe.dispatch.p1").valid());
    for (const double before : {1, 4}) {
      spec.system.stages.back() =
          stage("partition", {{"parts", 2.0}, {"before", before}, {"after", 0.0}});
      const std::string why = message_of<UserError>([&] { make_plan(spec); });
      CHECK_THAT(why, Contains("b1.moe.gate") && Contains("whole batch"));
    }
  }
}

TEST_CASE("the same gates without a limit of places may be cut") {
  PlanSpec spec =
      counted_spec({stage("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 0.0}})},
                   random_cost(3, 400, 20));
  change_model(spec, [&](Gpt2& m) {
    m.gate = "top2";
    m.capacity_factor = 0;
  });
  CHECK(make_plan(spec)->graph.find_op("b1.moe.gate.p1").valid());
}

TEST_CASE("a given range after the last layer ends before the loss") {
  const auto plan = make_plan(
      counted_spec({stage("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 12.0}})},
                   growing_cost(3, 1.0, 1.0), 4));
  CHECK(plan->graph.find_op("head.p1").valid());
  CHECK(plan->graph.find_op("loss").valid());
  CHECK(plan->graph.find_op("b2.mlp.fc2.p1").valid());
}

TEST_CASE("what is one part of a cut is not cut again") {
  const auto once = stage("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 0.0}});
  const auto cost = growing_cost(3, 1.0, 1.0);
  const std::string why = message_of<UserError>([&] {
    make_plan(counted_spec({once, once}, cost));
  });
  CHECK_THAT(why, Contains("moe.gate.p") && Contains("is already one part of a cut op"));
}

TEST_CASE("parts share one storage, also where only the range itself reads them") {
  const auto plan = make_plan(
      counted_spec({stage("partition", {{"parts", 4.0}, {"before", 1.0}, {"after", 0.0}})},
                   growing_cost(3, 1.0, 1.0)));
  for (const char* name : {"dispatch", "a2a_1", "fc1", "gelu", "fc2", "a2a_2"}) {
    CAPTURE(name);
    const auto buffer = [&](int p) {
      const OpId op = plan->graph.find_op(fmt::format("b1.moe.{}.p{}", name, p));
      REQUIRE(op.valid());
      return plan->memory.buffers[plan->graph.out(op).index()];
    };
    for (int p = 1; p < 4; ++p) CHECK(buffer(p).offset == buffer(0).offset);
  }
}

TEST_CASE("padded slots cannot be cut along the batch, and the refusal says so") {
  PlanSpec spec =
      small_spec({stage("partition", {{"parts", 2.0}, {"before", 1.0}, {"after", 0.0}})});
  const std::string why = message_of<UserError>([&] { make_plan(spec); });
  CHECK_THAT(why, Contains("b1.moe.a2a_1"));
}

TEST_CASE("ranges that cannot be are refused with the option, the value and what is allowed") {
  const auto refused = [](Options options) {
    return message_of<UserError>([&] {
      make_plan(counted_spec({stage("partition", std::move(options))}, random_cost(1, 10, 10), 4));
    });
  };
  CHECK_THAT(refused({{"before", 1.0}}),
             Contains("partition.before = 1, after = -1: give the number of ops"));
  CHECK_THAT(refused({{"before", 1000.0}, {"after", 0.0}}), Contains("ops before"));
  CHECK_THAT(refused({{"before", 14.0}, {"after", 3.0}, {"parts", 2.0}}),
             Contains("two MoE layers both contain"));
  const std::string too_many = "partition.parts = 5: 0 to 4, the samples of a rank's batch";
  CHECK_THAT(refused({{"parts", 5.0}, {"before", 1.0}, {"after", 0.0}}), Contains(too_many));
  CHECK_THAT(refused({{"parts", 5.0}}), Contains(too_many));
  CHECK_THAT(refused({{"parts", 2.5}}), Contains("whole number"));
}

}  // namespace
}  // namespace moe::test
