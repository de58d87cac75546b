#include "engine/replay/replay.h"

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/schedule/precedence.h"
#include "tests/cost/fake_ops.h"
#include "tests/timeline/same_spans.h"

namespace moe {
namespace {

using fake::op_id;
using test::same_spans;

/// A random program on three lanes, with order edges, and durations that differ by rank.
struct ThreeLanes {
  Graph graph{fake::table()};
  Schedule schedule;
  LaneOrders orders;
  std::vector<OpId> serial;
  int32_t num_ranks = 1;
  std::vector<Nanoseconds> durations;  // by op * num_ranks + rank

  Nanoseconds duration(OpId op, int32_t rank) const {
    return durations[op.index() * static_cast<size_t>(num_ranks) + static_cast<size_t>(rank)];
  }
  /// The ranks that run the op together with this one.
  std::vector<int32_t> members(OpId op, int32_t rank) const {
    if (graph.def(op).collective == Collective::kNone) return {rank};
    std::vector<int32_t> with;
    for (int32_t r = 0; r < num_ranks; ++r) {
      if (group_of(graph, graph.op(op)).same(r, rank)) with.push_back(r);
    }
    return with;
  }
  /// For a collective the largest over members counts.
  Nanoseconds lasts(OpId op, int32_t rank) const {
    Nanoseconds most = 0;
    for (const int32_t r : members(op, rank)) most = std::max(most, duration(op, r));
    return most;
  }
  ReplayInput input() const {
    return {.graph = graph,
            .schedule = schedule,
            .orders = orders,
            .num_ranks = num_ranks,
            .duration_ns = [this](OpId op, int32_t rank) { return duration(op, rank); }};
  }
  Timeline run() const { return replay(input()); }
};

ThreeLanes random_lanes(uint64_t seed, size_t num_ops, int32_t num_ranks) {
  Rng rng(seed);
  ThreeLanes p;
  p.num_ranks = num_ranks;
  p.graph.num_ranks = num_ranks;
  std::vector<TensorId> made;
  const char* const kinds[] = {"compute", "compute", "all_to_all", "all_reduce", "update"};
  for (size_t i = 0; i < num_ops; ++i) {
    std::string kind = kinds[rng.below(5)];
    std::vector<TensorId> inputs;
    if (kind == "update") inputs.push_back(fake::param(p.graph, fmt::format("w{}", i)));
    for (int64_t n = rng.below(3); n > 0 && !made.empty(); --n) {
      inputs.push_back(made[static_cast<size_t>(rng.below(static_cast<int64_t>(made.size())))]);
    }
    const bool together = kind.rfind("all", 0) == 0;
    const OpId op = p.graph.add_op(kind, fmt::format("op{}", i), inputs,
                                   together ? fake::random_group(rng, num_ranks) : Attrs{});
    made.push_back(p.graph.out(op));
    for (int32_t r = 0; r < num_ranks; ++r) p.durations.push_back(rng.below(8));
  }
  p.schedule = default_schedule(p.graph);
  p.schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  for (size_t i = 0; i < num_ops; ++i) {
    if (p.graph.def(op_id(i)).collective == Collective::kAllReduce) {
      p.schedule.lane_of[i] = LaneId(2);
    }
  }
  for (size_t n = num_ops / 4; n > 0; --n) {
    const int64_t to = 1 + rng.below(static_cast<int64_t>(num_ops) - 1);
    p.schedule.before(OpId(rng.below(to)), OpId(to), "test", "random");
  }
  p.orders = lane_orders(p.graph, p.schedule);
  return p;
}

using OpOnRank = std::pair<size_t, int32_t>;  // op, rank
std::map<OpOnRank, Span> by_op(const Timeline& timeline) {
  std::map<OpOnRank, Span> spans;
  for (const Span& span : timeline.spans) spans[{span.op.index(), span.rank}] = span;
  return spans;
}

Nanoseconds makespan(const Timeline& timeline) {
  Nanoseconds last = 0;
  for (const Span& span : timeline.spans) last = std::max(last, span.end);
  return last;
}

/// An oracle that knows no graph algorithm: it looks at every lane of every rank at every
/// nanosecond, again and again until nothing more happens at that time.
class EveryNanosecond {
 public:
  explicit EveryNanosecond(const ThreeLanes& program)
      : p_(program), deps_(dependencies(program.graph)) {
    for (const OrderEdge& e : p_.schedule.order_edges) deps_.preds[e.to.index()].push_back(e.from);
    next_.resize(p_.orders.lanes.size() * static_cast<size_t>(p_.num_ranks));
  }

  std::map<OpOnRank, Span> run() {
    const size_t all = p_.graph.num_ops() * static_cast<size_t>(p_.num_ranks);
    for (now_ = 0; ended_.size() < all; ++now_) {
      REQUIRE(now_ < 100'000);
      while (look()) {
      }
    }
    return spans_;
  }

 private:
  /// One look at every lane; true when something happened.
  bool look() {
    bool happened = false;
    for (int32_t rank = 0; rank < p_.num_ranks; ++rank) {
      for (size_t lane = 0; lane < p_.orders.lanes.size(); ++lane) {
        happened |= look_at(rank, lane);
      }
    }
    return happened;
  }

  bool look_at(int32_t rank, size_t lane) {
    size_t& next = next_[lane * static_cast<size_t>(p_.num_ranks) + static_cast<size_t>(rank)];
    if (next == p_.orders.lanes[lane].size()) return false;
    const OpId op = p_.orders.lanes[lane][next];
    const OpOnRank key{op.index(), rank};
    if (posted_.count(key) == 0) {
      for (const OpId before : deps_.preds[op.index()]) {
        if (ended_.count({before.index(), rank}) == 0) return false;
      }
      posted_[key] = now_;
      return true;
    }
    const std::optional<Nanoseconds> begin = began(op, rank);
    if (!begin || *begin + p_.lasts(op, rank) > now_) return false;
    spans_[key] = {op, rank, LaneId(static_cast<int64_t>(lane)), posted_[key], *begin, now_};
    ended_[key] = now_;
    ++next;
    return true;
  }

  std::optional<Nanoseconds> began(OpId op, int32_t rank) const {
    if (p_.graph.def(op).collective == Collective::kNone) return posted_.at({op.index(), rank});
    Nanoseconds last = 0;
    for (const int32_t r : p_.members(op, rank)) {
      const auto post = posted_.find({op.index(), r});
      if (post == posted_.end()) return std::nullopt;
      last = std::max(last, post->second);
    }
    return last;
  }

  const ThreeLanes& p_;
  Dependencies deps_;
  Nanoseconds now_ = 0;
  std::vector<size_t> next_;  // by lane and rank
  std::map<OpOnRank, Nanoseconds> posted_, ended_;
  std::map<OpOnRank, Span> spans_;
};

TEST_CASE("replay agrees with a machine that looks at every lane at every nanosecond") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    const ThreeLanes p = random_lanes(seed, 30, 1 + static_cast<int32_t>(seed % 4));
    const std::map<OpOnRank, Span> expected = EveryNanosecond(p).run();
    const std::map<OpOnRank, Span> actual = by_op(p.run());
    REQUIRE(actual.size() == expected.size());
    for (const auto& [key, span] : expected) {
      const Span& got = actual.at(key);
      INFO("op " << key.first << " on rank " << key.second);
      CHECK(got.lane == span.lane);
      CHECK(got.post == span.post);
      CHECK(got.begin == span.begin);
      CHECK(got.end == span.end);
    }
  }
}

TEST_CASE("every op runs once per rank, and spans stand in order of begin, rank, lane and op") {
  const ThreeLanes p = random_lanes(1, 200, 3);
  const Timeline timeline = p.run();
  CHECK(timeline.num_ranks == 3);
  CHECK(timeline.provenance == Provenance::kSimulated);
  CHECK(timeline.spans.size() == 600);
  CHECK(by_op(timeline).size() == 600);
  const auto key = [](const Span& s) { return std::tie(s.begin, s.rank, s.lane, s.op); };
  CHECK(std::is_sorted(timeline.spans.begin(), timeline.spans.end(),
                       [&](const Span& a, const Span& b) { return key(a) < key(b); }));
}

TEST_CASE("a lane runs one op at a time") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const ThreeLanes p = random_lanes(seed, 100, 2);
    const std::map<OpOnRank, Span> spans = by_op(p.run());
    for (const std::vector<OpId>& lane : p.orders.lanes) {
      for (int32_t rank = 0; rank < p.num_ranks; ++rank) {
        for (size_t i = 1; i < lane.size(); ++i) {
          REQUIRE(spans.at({lane[i].index(), rank}).post >=
                  spans.at({lane[i - 1].index(), rank}).end);
        }
      }
    }
  }
}

TEST_CASE("data, mutation and order edges are kept") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const ThreeLanes p = random_lanes(seed, 100, 2);
    const std::map<OpOnRank, Span> spans = by_op(p.run());
    const auto kept = [&](OpId from, OpId to) {
      for (int32_t r = 0; r < p.num_ranks; ++r) {
        REQUIRE(spans.at({to.index(), r}).post >= spans.at({from.index(), r}).end);
      }
    };
    const Dependencies deps = dependencies(p.graph);
    for (size_t i = 0; i < deps.preds.size(); ++i) {
      for (const OpId before : deps.preds[i]) kept(before, op_id(i));
    }
    for (const OrderEdge& edge : p.schedule.order_edges) kept(edge.from, edge.to);
  }
}

TEST_CASE("an overwriting op waits for every other reader of the tensor") {
  ThreeLanes p;
  const TensorId w = fake::param(p.graph, "w");
  const OpId reader = p.graph.add_op("all_to_all", "reader", {w});
  const OpId update = p.graph.add_op("update", "update", {w});
  p.durations = {100, 1};
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  const std::map<OpOnRank, Span> spans = by_op(p.run());
  CHECK(spans.at({reader.index(), 0}).begin == 0);
  CHECK(spans.at({update.index(), 0}).begin == 100);
}

TEST_CASE("groups of a collective with different loads do not wait for each other") {
  ThreeLanes p;
  p.num_ranks = p.graph.num_ranks = 4;
  const OpId work = p.graph.add_op("compute", "work", {});
  const OpId a2a = p.graph.add_op("all_to_all", "a2a", {p.graph.out(work)}, {{"group", 2}});
  const OpId sum =
      p.graph.add_op("all_reduce", "sum", {p.graph.out(a2a)}, {{"group", 2}, {"stride", 2}});
  p.durations = {10, 12, 30, 31, 5, 4, 7, 6, 1, 1, 1, 2};  // of work, a2a and sum, on ranks 0 to 3
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  const std::map<OpOnRank, Span> spans = by_op(p.run());
  for (const int32_t rank : {0, 1, 2, 3}) {
    CHECK(spans.at({a2a.index(), rank}).begin == (rank < 2 ? 12 : 31));
    CHECK(spans.at({a2a.index(), rank}).end == (rank < 2 ? 17 : 38));
    CHECK(spans.at({sum.index(), rank}).post == (rank < 2 ? 17 : 38));
    CHECK(spans.at({sum.index(), rank}).begin == 38);  // ranks 0 and 2, and ranks 1 and 3
    CHECK(spans.at({sum.index(), rank}).end == (rank % 2 == 0 ? 39 : 40));
  }
}

TEST_CASE("a collective begins for all when the last member has posted and ends for all alike") {
  ThreeLanes p;
  p.num_ranks = 2;
  const OpId work = p.graph.add_op("compute", "work", {});
  const OpId a2a = p.graph.add_op("all_to_all", "a2a", {p.graph.out(work)});
  const OpId after = p.graph.add_op("compute", "after", {p.graph.out(a2a)});
  p.durations = {10, 30, 5, 7, 1, 2};
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  const std::map<OpOnRank, Span> spans = by_op(p.run());
  for (const int32_t rank : {0, 1}) {
    const Span& span = spans.at({a2a.index(), rank});
    CHECK(span.post == (rank == 0 ? 10 : 30));
    CHECK(span.begin == 30);
    CHECK(span.end == 37);
    CHECK(spans.at({after.index(), rank}).begin == 37);
    CHECK(spans.at({after.index(), rank}).end == (rank == 0 ? 38 : 39));
  }
}

TEST_CASE("no schedule is shorter than the critical path or the busiest lane") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const ThreeLanes p = random_lanes(seed, 120, 1 + static_cast<int32_t>(seed % 4));
    const LowerBound bound = lower_bound(p.input());
    const Nanoseconds took = makespan(p.run());
    CHECK(took >= bound.critical_path_ns);
    CHECK(took >= bound.busiest_lane_ns);
    CHECK(bound.ns() == std::max(bound.critical_path_ns, bound.busiest_lane_ns));
    Nanoseconds sum = 0;
    for (const Nanoseconds ns : p.durations) sum += ns;
    CHECK(took <= sum);
  }
}

TEST_CASE("the lower bound of ranks that differ is that of the rank with the largest") {
  ThreeLanes p;
  p.num_ranks = p.graph.num_ranks = 2;
  const OpId a = p.graph.add_op("compute", "a", {});
  p.graph.add_op("compute", "b", {p.graph.out(a)});
  p.graph.add_op("all_to_all", "comm", {p.graph.out(a)});
  p.schedule = default_schedule(p.graph);
  p.durations = {5, 1, 2, 9, 20, 20};  // of a, b and comm, on ranks 0 and 1
  const LowerBound bound = lower_bound(p.input());
  CHECK(bound.critical_path_ns == 25);  // a and comm on rank 0
  CHECK(bound.busiest_lane_ns == 20);
  p.durations = {5, 1, 2, 39, 20, 20};
  CHECK(lower_bound(p.input()).busiest_lane_ns == 40);  // a and b on rank 1
}

TEST_CASE("the lower bound of a fork is its longer arm or its fuller lane") {
  ThreeLanes p;
  const OpId a = p.graph.add_op("compute", "a", {});
  const OpId comm = p.graph.add_op("all_to_all", "comm", {p.graph.out(a)});
  p.graph.add_op("compute", "b", {p.graph.out(a)});
  p.graph.add_op("compute", "c", {p.graph.out(comm)});
  p.schedule = default_schedule(p.graph);
  const auto bound = [&](std::vector<Nanoseconds> ns) {
    p.durations = std::move(ns);
    return lower_bound(p.input());
  };
  CHECK(bound({5, 100, 20, 7}).critical_path_ns == 112);
  CHECK(bound({5, 100, 20, 7}).busiest_lane_ns == 100);
  CHECK(bound({5, 10, 20, 7}).critical_path_ns == 25);
  CHECK(bound({5, 10, 20, 7}).ns() == 32);
}

TEST_CASE("a schedule that orders all ops takes the sum of their durations") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ThreeLanes p = random_lanes(seed, 60, 1);
    for (size_t i = 1; i < p.graph.num_ops(); ++i) {
      p.schedule.before(op_id(i - 1), op_id(i), "test", "one by one");
    }
    p.orders = lane_orders(p.graph, p.schedule);
    Nanoseconds sum = 0;
    for (const Nanoseconds ns : p.durations) sum += ns;
    CHECK(makespan(p.run()) == sum);
  }
}

TEST_CASE("ranks that do the same need be simulated once") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ThreeLanes one = random_lanes(seed, 80, 1);
    ThreeLanes many = one;
    many.num_ranks = 5;  // more than the graph's: a group
    many.durations.clear();
    for (const Nanoseconds ns : one.durations) many.durations.insert(many.durations.end(), 5, ns);
    const std::map<OpOnRank, Span> alone = by_op(one.run());
    for (const auto& [key, span] : by_op(many.run())) {
      REQUIRE(span.begin == alone.at({key.first, 0}).begin);
      REQUIRE(span.end == alone.at({key.first, 0}).end);
    }
  }
}

TEST_CASE("spans carry the bytes that a rank sends") {
  const ThreeLanes p = random_lanes(3, 20, 2);
  ReplayInput input = p.input();
  input.bytes = [](OpId op, int32_t) { return 100 + op.value; };
  for (const Span& span : replay(input).spans) CHECK(span.bytes == 100 + span.op.value);
  for (const Span& span : p.run().spans) CHECK(span.bytes == 0);
}

TEST_CASE("lane orders that wait for each other in a circle are refused with the ops") {
  ThreeLanes p;
  const OpId a = p.graph.add_op("compute", "a", {});
  const OpId b = p.graph.add_op("all_to_all", "b", {p.graph.out(a)});
  const OpId c = p.graph.add_op("compute", "c", {p.graph.out(b)});
  p.durations = {1, 1, 1};
  p.schedule = default_schedule(p.graph);
  p.orders.lanes = {{c, a}, {b}};
  CHECK_THROWS_WITH(p.run(), Catch::Contains("'a'") && Catch::Contains("'c'"));
}

TEST_CASE("an op that stands in no lane, or in two, is a bug") {
  ThreeLanes p = random_lanes(5, 10, 1);
  LaneOrders& orders = p.orders;
  const std::vector<OpId> lane = orders.lanes[0];
  orders.lanes[0].pop_back();
  CHECK_THROWS_AS(p.run(), InternalError);
  orders.lanes[0] = lane;
  orders.lanes[1].push_back(lane.back());
  CHECK_THROWS_AS(p.run(), InternalError);
}

TEST_CASE("a lane that waits for another one pays for waking, one that is busy does not") {
  ThreeLanes p;
  const auto add = [&](const char* kind, const char* name, std::vector<TensorId> inputs,
                       Nanoseconds ns) {
    const OpId op = p.graph.add_op(kind, name, std::move(inputs));
    p.durations.push_back(ns);
    return p.graph.out(op);
  };
  const TensorId a = add("compute", "a", {}, 10);
  const TensorId sent = add("all_to_all", "sent", {a}, 20);  // waits: begins at 10 + 3
  add("compute", "short", {}, 5);
  const TensorId b = add("compute", "b", {sent}, 10);  // waits: begins at 33 + 3
  add("all_to_all", "next", {a}, 7);                   // its lane was busy until 33
  add("compute", "c", {b}, 1);                         // the same lane, no waking
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  ReplayInput input = p.input();
  input.handoff_ns = 3;
  std::map<std::string, Span> spans;
  for (const Span& span : replay(input).spans) spans[p.graph.op(span.op).name] = span;
  CHECK(spans["sent"].begin == 13);
  CHECK(spans["short"].begin == 10);
  CHECK(spans["b"].begin == 36);
  CHECK(spans["next"].begin == 33);
  CHECK(spans["c"].begin == 46);
}

TEST_CASE("waking lanes never makes a step shorter, and no more longer than once per op") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ThreeLanes p = random_lanes(seed, 30, 2);
    ReplayInput input = p.input();
    const auto end_of = [](const Timeline& timeline) {
      Nanoseconds end = 0;
      for (const Span& span : timeline.spans) end = std::max(end, span.end);
      return end;
    };
    const Nanoseconds without = end_of(replay(input));
    input.handoff_ns = 4;
    const Nanoseconds with = end_of(replay(input));
    CHECK(with >= without);
    CHECK(with <= without + 30 * 4);
  }
}

TEST_CASE("a host launches the program in order, ahead of the device, and waits where it must") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    const ThreeLanes p = random_lanes(seed, 30, 4);
    ReplayInput input = p.input();
    const auto launch_ns = [seed](OpId op) {
      return static_cast<Nanoseconds>((op.index() + seed) % 5);
    };
    const auto waits = [](OpId op) { return op.index() % 7 == 3; };
    input.host_ns = launch_ns;
    input.host_waits = waits;
    const Timeline timeline = replay(input);
    // One pass over the program: an op is ready when it is launched and what it waits for is over.
    const Precedence edges(p.graph, p.schedule, &p.orders);
    std::vector<std::vector<Nanoseconds>> end(p.graph.num_ops(), std::vector<Nanoseconds>(4));
    std::vector<Nanoseconds> host(4), bound(4);
    for (const OpId op : edges.order(p.graph, p.schedule)) {
      std::vector<Nanoseconds> ready(4);
      for (size_t r = 0; r < 4; ++r) {
        for (const OpId before : edges.deps.preds[op.index()]) {
          ready[r] = std::max(ready[r], end[before.index()][r]);
        }
        host[r] += launch_ns(op);
        const bool compute = p.graph.def(op).collective == Collective::kNone;
        if (compute) bound[r] += std::max<Nanoseconds>(0, host[r] - ready[r]);
        ready[r] = std::max(ready[r], host[r]);
      }
      for (int32_t r = 0; r < 4; ++r) {
        Nanoseconds begin = 0;
        for (const int32_t member : p.members(op, r)) {
          begin = std::max(begin, ready[static_cast<size_t>(member)]);
        }
        end[op.index()][static_cast<size_t>(r)] = begin + p.lasts(op, r);
      }
      for (size_t r = 0; waits(op) && r < 4; ++r) host[r] = std::max(host[r], end[op.index()][r]);
    }
    for (const Span& span : timeline.spans) {
      CAPTURE(p.graph.op(span.op).name, span.rank);
      CHECK(span.end == end[span.op.index()][static_cast<size_t>(span.rank)]);
    }
    CHECK(timeline.host_ns == bound);
  }
}

TEST_CASE("a step beyond the clock is refused with the op that ends it") {
  ThreeLanes p;
  std::vector<TensorId> before;
  const auto add = [&](const char* kind, const char* name, Nanoseconds ns) {
    const OpId op = p.graph.add_op(kind, name, before);
    before = {p.graph.out(op)};
    p.durations.push_back(ns);
  };
  constexpr Nanoseconds kHalf = Nanoseconds{1} << 52;
  add("compute", "a", kHalf);
  add("all_to_all", "b", kHalf);
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  CHECK(makespan(p.run()) == 2 * kHalf);
  add("compute", "c", 1);
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  CHECK_THROWS_WITH(p.run(), Catch::Contains("op 'c'") && Catch::Contains("beyond the clock"));
  CHECK_THROWS_WITH(lower_bound(p.input()),
                    Catch::Contains("op 'c'") && Catch::Contains("beyond the clock"));
  p.durations[1] = Nanoseconds{1} << 62;
  CHECK_THROWS_WITH(p.run(), Catch::Contains("op 'b' takes 4.612e+09 s"));
}

TEST_CASE("more ranks that differ have a shorter clock, so that sums over them do not overflow") {
  ThreeLanes p;
  p.num_ranks = p.graph.num_ranks = 1 << 12;
  p.graph.add_op("compute", "a", {});
  p.durations.assign(1 << 12, Nanoseconds{1} << 50);
  p.schedule = default_schedule(p.graph);
  p.orders = lane_orders(p.graph, p.schedule);
  CHECK(makespan(p.run()) == Nanoseconds{1} << 50);
  p.durations[77] += 1;
  CHECK_THROWS_WITH(
      p.run(), Catch::Contains("on 4096 ranks that differ") && Catch::Contains("beyond the clock"));
}

}  // namespace
}  // namespace moe
