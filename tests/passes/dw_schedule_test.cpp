#include "engine/passes/order/dw_schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::small_spec;
using test::stage;

Stage dw(const std::string& overshoot = "allow") {
  return stage("dw_schedule", {{"overshoot", overshoot}});
}

struct Sets {
  std::shared_ptr<const Plan> plan = make_plan(small_spec());
  DwCandidates found = dw_candidates(plan->graph, plan->schedule, *plan->spec.cost);

  /// The dW that may hide under this all-to-all, by name.
  std::set<std::string> of(const std::string& name) const {
    std::set<std::string> names;
    for (size_t a = 0; a < found.a2a.size(); ++a) {
      if (plan->graph.op(found.a2a[a]).name != name) continue;
      for (size_t i = 0; i < found.dw.size(); ++i) {
        if (found.problem.allowed[a][i]) names.insert(plan->graph.op(found.dw[i]).name);
      }
    }
    return names;
  }
};

TEST_CASE(
    "an expert's dW may hide under the second all-to-all of its own backward, not the first") {
  const Sets sets;
  const auto first = sets.of("b1.moe.a2a_2.dx"), second = sets.of("b1.moe.a2a_1.dx");
  for (const char* own : {"b1.moe.fc1.dw", "b1.moe.fc2.dw"}) {
    CHECK(first.count(own) == 0);
    CHECK(second.count(own) == 1);
  }
}

TEST_CASE("dW of later blocks may hide, dW of earlier blocks never, and none in the forward") {
  const Sets sets;
  for (const char* name : {"b1.moe.a2a_2.dx", "b1.moe.a2a_1.dx"}) {
    const auto set = sets.of(name);
    for (const char* later : {"head.dw", "b3.attn.qkv.dw", "b3.moe.fc1.dw", "b2.mlp.fc1.dw"}) {
      CHECK(set.count(later) == 1);
    }
    for (const std::string& in : set) CHECK(in.substr(0, 3) != "b0.");
    CHECK(set.count("b1.attn.qkv.dw") == 0);
  }
  CHECK(sets.of("b1.moe.a2a_1").empty());
  CHECK(sets.of("b3.moe.a2a_2").empty());
}

OverlapProblem problem(std::vector<Nanoseconds> a2a, std::vector<Nanoseconds> dw_times) {
  OverlapProblem made{std::move(a2a), std::move(dw_times), {}};
  made.allowed.assign(made.a2a_ns.size(), std::vector<bool>(made.dw_ns.size(), true));
  return made;
}

std::vector<size_t> picked(const OverlapAssignment& assignment) {
  std::vector<size_t> order;
  for (const OverlapPick& pick : assignment.picks) order.push_back(pick.dw);
  return order;
}

TEST_CASE("greedy takes the dW nearest to what is uncovered, then the nearest to the rest") {
  // 10 uncovered: 9 is nearest (12 is 2 away). 1 uncovered: 3 is nearest, by overshooting.
  const OverlapProblem p = problem({10}, {3, 12, 6, 9});
  const OverlapAssignment allow = assign_greedy(p, true);
  CHECK(picked(allow) == std::vector<size_t>{3, 0});
  CHECK(allow.picks[0].uncovered_ns == 10);
  CHECK(allow.picks[1].uncovered_ns == 1);
  CHECK(allow.hidden_ns == 10);
  CHECK(picked(assign_greedy(p, false)) == std::vector<size_t>{3});
}

TEST_CASE("without overshoot a dW twice as long as what is uncovered is left") {
  CHECK(assign_greedy(problem({10}, {20}), false).picks.empty());
  CHECK(assign_greedy(problem({10}, {19}), false).picks.size() == 1);
  CHECK(assign_greedy(problem({10}, {500}), true).picks.size() == 1);
}

TEST_CASE("an earlier all-to-all chooses first, and a dW is used once") {
  const OverlapProblem p = problem({5, 5}, {5, 4});
  const OverlapAssignment a = assign_greedy(p, false);
  REQUIRE(a.picks.size() == 2);
  CHECK((a.picks[0].a2a == 0 && a.picks[0].dw == 0));
  CHECK((a.picks[1].a2a == 1 && a.picks[1].dw == 1));
  CHECK(a.hidden_ns == 9);
}

TEST_CASE("a refused pick stays free for the next all-to-all") {
  const OverlapAssignment a = assign_greedy(problem({5, 5}, {5}), true,
                                            [](const OverlapPick& pick) { return pick.a2a == 1; });
  REQUIRE(a.picks.size() == 1);
  CHECK(a.picks[0].a2a == 1);
}

OverlapProblem random_problem(uint64_t seed, int64_t num_a2a, int64_t num_dw) {
  Rng rng(seed);
  OverlapProblem p;
  for (int64_t i = 0; i < num_a2a; ++i) p.a2a_ns.push_back(1 + rng.below(30));
  for (int64_t i = 0; i < num_dw; ++i) p.dw_ns.push_back(1 + rng.below(20));
  for (int64_t a = 0; a < num_a2a; ++a) {
    std::vector<bool>& row = p.allowed.emplace_back();
    for (int64_t i = 0; i < num_dw; ++i) row.push_back(rng.below(3) > 0);
  }
  return p;
}

/// The objective's maximum by trying every assignment.
Nanoseconds by_enumeration(const OverlapProblem& p) {
  const size_t n = p.dw_ns.size(), choices = p.a2a_ns.size() + 1;
  size_t total = 1;
  for (size_t i = 0; i < n; ++i) total *= choices;
  Nanoseconds best = 0;
  for (size_t code = 0; code < total; ++code) {
    std::vector<OverlapPick> picks;
    size_t rest = code;
    bool allowed = true;
    for (size_t i = 0; i < n; ++i, rest /= choices) {
      const size_t a = rest % choices;
      if (a == choices - 1) continue;
      allowed = allowed && p.allowed[a][i];
      picks.push_back({a, i, 0});
    }
    if (allowed) best = std::max(best, hidden_ns(p, picks));
  }
  return best;
}

constexpr int64_t kMostBranches = 1 << 30;

void check_valid(const OverlapProblem& p, const OverlapAssignment& assignment) {
  std::vector<int> used(p.dw_ns.size());
  for (const OverlapPick& pick : assignment.picks) {
    CHECK(p.allowed[pick.a2a][pick.dw]);
    CHECK(++used[pick.dw] == 1);
  }
  CHECK(assignment.hidden_ns == hidden_ns(p, assignment.picks));
}

TEST_CASE("the exact solver finds the best of all assignments") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const OverlapProblem p = random_problem(seed, 3, 6);
    const OverlapAssignment exact = assign_exact(p, kMostBranches).value();
    check_valid(p, exact);
    CHECK(exact.hidden_ns == by_enumeration(p));
  }
}

TEST_CASE("the exact solver ends, with the best assignment or with none") {
  // The bound cannot be reached, so that only a whole search shows that an assignment is the best.
  const auto equal = [](size_t a2a, size_t dw) {
    return OverlapProblem{std::vector<Nanoseconds>(a2a, 3), std::vector<Nanoseconds>(dw, 2),
                          std::vector(a2a, std::vector<bool>(dw, true))};
  };
  CHECK(assign_exact(equal(2, 3), kMostBranches)->hidden_ns == 5);
  CHECK_FALSE(assign_exact(equal(12, 18), 20'000));
}

TEST_CASE("greedy is at most exact is at most the bound, and greedy falls short somewhere") {
  int short_of = 0, tight = 0;
  for (uint64_t seed = 100; seed < 160; ++seed) {
    const OverlapProblem p = random_problem(seed, 4, 9);
    const Nanoseconds exact = assign_exact(p, kMostBranches)->hidden_ns, bound = overlap_bound(p);
    for (const bool overshoot : {true, false}) {
      const OverlapAssignment greedy = assign_greedy(p, overshoot);
      check_valid(p, greedy);
      CHECK(greedy.hidden_ns <= exact);
      short_of += greedy.hidden_ns < exact;
    }
    CHECK(exact <= bound);
    tight += exact == bound;
  }
  CHECK(short_of > 0);
  CHECK(tight > 0);
}

TEST_CASE("the bound shares dW out as far as they are allowed") {
  OverlapProblem p = problem({10, 10}, {15, 3});
  CHECK(overlap_bound(p) == 18);
  p.allowed = {{true, false}, {false, true}};
  CHECK(overlap_bound(p) == 13);
}

/// The smallest cut: for every set of dW, the others' time and that of all all-to-alls it may use.
Nanoseconds smallest_cut(const OverlapProblem& p) {
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  for (size_t set = 0; set < size_t{1} << p.dw_ns.size(); ++set) {
    Nanoseconds cut = 0;
    for (size_t i = 0; i < p.dw_ns.size(); ++i) cut += (set >> i) % 2 == 0 ? p.dw_ns[i] : 0;
    for (size_t a = 0; a < p.a2a_ns.size(); ++a) {
      bool used = false;
      for (size_t i = 0; i < p.dw_ns.size(); ++i) used |= (set >> i) % 2 == 1 && p.allowed[a][i];
      cut += used ? p.a2a_ns[a] : 0;
    }
    best = std::min(best, cut);
  }
  return best;
}

TEST_CASE("the bound is the smallest cut between dW and all-to-alls") {
  for (uint64_t seed = 200; seed < 400; ++seed) {
    OverlapProblem p = random_problem(seed, 5, 6);
    // Few are allowed, so that flow must be sent back.
    Rng rng(seed);
    for (std::vector<bool>& row : p.allowed) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = row[i] && rng.below(2) == 0;
    }
    CHECK(overlap_bound(p) == smallest_cut(p));
  }
}

/// Costs by kind of op: all-to-alls 100, dW 40, everything else 5, all-reduces as given.
PlanSpec timed_spec(std::vector<Stage> stages, Nanoseconds all_reduce = 1) {
  PlanSpec spec = small_spec(std::move(stages));
  spec.cost = std::make_shared<test::GivenCost>([=](const Graph& graph, OpId op) -> Nanoseconds {
    if (graph.def(op).collective == Collective::kAllToAll) return 100;
    if (graph.def(op).collective == Collective::kAllReduce) return all_reduce;
    return graph.op(op).is_dw ? 40 : 5;
  });
  return spec;
}

TEST_CASE("a chosen dW runs between what its all-to-all waits for and what waits for it") {
  const auto plan = make_plan(timed_spec({dw()}));
  const Graph& graph = plan->graph;
  const HappensBefore hb(graph, plan->schedule, plan->orders);
  const Dependencies deps = dependencies(graph);
  int checked = 0;
  for (const Decision& decision : plan->schedule.log) {
    CHECK_THAT(decision.why, Contains("not hidden yet") && Contains("this dW takes 0.000 ms"));
    const OpId chosen = graph.find_op(decision.op);
    const std::string a2a_name = decision.why.substr(6, decision.why.find(':') - 6);
    const OpId a2a = graph.find_op(a2a_name);
    REQUIRE(a2a.valid());
    for (const OpId p : deps.preds[a2a.index()]) CHECK(hb.before(p, chosen));
    for (const OpId s : deps.succs[a2a.index()]) CHECK(hb.before(chosen, s));
    CHECK((!hb.before(a2a, chosen) && !hb.before(chosen, a2a)));
    for (const OpId s : deps.succs[chosen.index()]) {
      if (graph.def(s).collective == Collective::kAllReduce) CHECK(hb.before(a2a, s));
    }
    ++checked;
  }
  CHECK(checked >= 8);
}

TEST_CASE("what the assignment hides comes off the simulated step") {
  for (const char* overshoot : {"allow", "never"}) {
    const auto serial = make_plan(timed_spec({stage("serial")}, 0));
    const auto after = make_plan(timed_spec({dw(overshoot)}, 0));
    const auto plain = make_plan(timed_spec({}, 0));
    const DwCandidates found = dw_candidates(plain->graph, plain->schedule, *plain->spec.cost);
    const OverlapAssignment chosen =
        assign_greedy(found.problem, std::string(overshoot) == "allow");
    CHECK(chosen.hidden_ns >= 300);
    CHECK(test::makespan(*serial) - test::makespan(*after) >= chosen.hidden_ns);
    CHECK(test::makespan(*plain) > test::makespan(*after));
  }
}

TEST_CASE("a mix with a pipeline or other order edges stays legal, whatever the costs") {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    std::vector<Stage> stages{dw(seed % 2 == 0 ? "allow" : "never")};
    if (seed % 3 != 0) {
      stages.push_back(
          stage("capacity_pipeline", {{"degree", 2.0 + static_cast<double>(seed % 4)}}));
    }
    PlanSpec spec = small_spec(stages);
    spec.system.sync.lane = seed % 5 == 0 ? ReduceLane::kOwn : ReduceLane::kWithAllToAlls;
    spec.cost = std::make_shared<test::GivenCost>(
        [=](const Graph&, OpId op) { return 1 + Rng(seed * 7919 + op.index()).below(100); });
    CHECK(test::message_of<std::exception>([&] { make_plan(spec); }) == "");
  }
}

TEST_CASE("the parts of a pipeline are not held up by the all-reduce of a dW under one of them") {
  const auto plan =
      make_plan(timed_spec({stage("capacity_pipeline", {{"degree", 4.0}}), dw()}, 500));
  const std::vector<OpId>& comm = plan->orders.lanes[1];
  const auto place = [&](const std::string& name) {
    return std::find(comm.begin(), comm.end(), plan->graph.find_op(name)) - comm.begin();
  };
  CHECK(place("b1.moe.a2a_2.p0.dx") - place("b1.moe.a2a_2.p3.dx") == 3);
}

}  // namespace
}  // namespace moe
