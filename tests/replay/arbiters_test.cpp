// Lanes that pick: replay against a machine that looks at everything at every nanosecond.
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/replay/replay.h"
#include "engine/schedule/legality.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

using fake::op_id;

/// A random program on compute, comm and comm_reduce with arbiters, chunks, priorities and holds.
struct Program {
  Graph graph{fake::table()};
  Schedule schedule;
  LaneOrders orders;
  int32_t num_ranks = 1;
  Nanoseconds pick_ns = 0;
  std::vector<Nanoseconds> durations;  // by op * num_ranks + rank

  Nanoseconds duration(OpId op, int32_t rank) const {
    return durations[op.index() * static_cast<size_t>(num_ranks) + static_cast<size_t>(rank)];
  }
  Group group(OpId op) const { return group_of(graph, graph.op(op)); }
  int64_t num_groups(OpId op) const { return num_ranks / group(op).size; }
  bool in_group(OpId op, int64_t number, int32_t rank) const {
    return group(op).number(rank) == number;
  }
  Nanoseconds chunk_ns(OpId op, int64_t number) const {
    Nanoseconds most = 0;
    for (int32_t r = 0; r < num_ranks; ++r) {
      if (in_group(op, number, r)) most = std::max(most, duration(op, r));
    }
    const int64_t n = num_chunks(graph, schedule, op);
    return (most + n - 1) / n;
  }
  bool is_collective(OpId op) const { return graph.def(op).collective != Collective::kNone; }
  ReplayInput input() const {
    return {.graph = graph,
            .schedule = schedule,
            .orders = orders,
            .num_ranks = num_ranks,
            .duration_ns = [this](OpId op, int32_t rank) { return duration(op, rank); },
            .pick_ns = pick_ns};
  }
  bool is_legal() const {
    try {
      check_legal(graph, schedule, {&orders, 1}, plan_memory(graph, schedule, orders));
      return true;
    } catch (const RunError&) {
      return false;
    }
  }
};

/// Keeps the hold where it is legal.
void try_hold(Program& p, Rng& rng) {
  const auto n = static_cast<int64_t>(p.graph.num_ops());
  p.schedule.holds.push_back({OpId(rng.below(n)), OpId(rng.below(n)), "test"});
  if (!p.is_legal()) p.schedule.holds.pop_back();
}

Program random_program(uint64_t seed, size_t num_ops, int32_t num_ranks) {
  Rng rng(seed);
  Program p;
  p.num_ranks = p.graph.num_ranks = num_ranks;
  p.pick_ns = rng.below(3);
  std::vector<TensorId> made;
  const char* const kinds[] = {"compute", "compute", "all_to_all", "all_reduce"};
  for (size_t i = 0; i < num_ops; ++i) {
    std::vector<TensorId> inputs;
    for (int64_t n = rng.below(3); n > 0 && !made.empty(); --n) {
      inputs.push_back(made[static_cast<size_t>(rng.below(static_cast<int64_t>(made.size())))]);
    }
    const std::string kind = kinds[rng.below(4)];
    Attrs attrs = kind == "compute" ? Attrs{} : fake::random_group(rng, num_ranks);
    attrs["n"] = int64_t{16};
    const OpId op = p.graph.add_op(kind, fmt::format("op{}", i), inputs, std::move(attrs));
    made.push_back(p.graph.out(op));
    for (int32_t r = 0; r < num_ranks; ++r) p.durations.push_back(rng.below(8));
  }
  p.schedule = default_schedule(p.graph);
  p.schedule.lanes.push_back({"comm_reduce", LaneKind::kComm});
  const int64_t form = rng.below(3);
  if (form != 1) p.schedule.lanes[1].pick = Pick::kPriority;
  if (form != 0) p.schedule.exclusive.push_back({{LaneId(1), LaneId(2)}, "test"});
  for (size_t i = 0; i < num_ops; ++i) {
    const OpId op = op_id(i);
    if (!p.is_collective(op)) continue;
    if (p.graph.def(op).collective == Collective::kAllReduce) p.schedule.lane_of[i] = LaneId(2);
    p.schedule.set_priority(op, rng.below(3));
    const Bytes message = message_bytes(p.graph, op);
    if (message > 0 && rng.below(3) == 0) p.schedule.set_chunk(p.graph, op, 1 + rng.below(message));
  }
  p.orders = lane_orders(p.graph, p.schedule);
  for (int i = 0; i < 12; ++i) try_hold(p, rng);
  return p;
}

using Key = std::tuple<size_t, int32_t, int32_t>;  // op, rank, chunk

/// Knows neither events nor queues: at every nanosecond it looks for something that may happen,
/// again and again until nothing more does, and lets arbiters choose only then.
class SlowMachine {
 public:
  explicit SlowMachine(const Program& program) : p_(program), deps_(dependencies(program.graph)) {
    for (const std::vector<OpId>& lane : p_.orders.lanes) {
      for (size_t i = 1; i < lane.size(); ++i) {
        if (!p_.schedule.picks(lane_of(lane[i])))
          deps_.preds[lane[i].index()].push_back(lane[i - 1]);
      }
    }
  }

  std::map<Key, Span> run() {
    for (now_ = 0; over_.size() < p_.graph.num_ops() * static_cast<size_t>(p_.num_ranks); ++now_) {
      REQUIRE(now_ < 100'000);
      do {
        while (look()) {
        }
      } while (choose());
    }
    return spans_;
  }

 private:
  struct Flight {
    Nanoseconds begin, end;
  };
  LaneId lane_of(OpId op) const { return p_.schedule.lane_of[op.index()]; }
  bool arbitrated(OpId op) const { return arbiter_of(op) >= 0; }
  int arbiter_of(OpId op) const {
    const std::vector<Arbiter> all = arbiters(p_.schedule);
    for (size_t a = 0; a < all.size(); ++a) {
      for (const LaneId lane : all[a]) {
        if (lane == lane_of(op)) return static_cast<int>(a);
      }
    }
    return -1;
  }
  bool posted_by_group(OpId op, int64_t number) const {
    for (int32_t r = 0; r < p_.num_ranks; ++r) {
      if (p_.in_group(op, number, r) && !posted_.contains({op.index(), r})) return false;
    }
    return true;
  }
  bool posted_by_all(OpId op) const {
    for (int64_t g = 0; g < p_.num_groups(op); ++g) {
      if (!posted_by_group(op, g)) return false;
    }
    return true;
  }
  bool over(OpId op, int32_t rank) const { return over_.contains({op.index(), rank}); }

  bool look() {
    for (size_t i = 0; i < p_.graph.num_ops(); ++i) {
      const OpId op = op_id(i);
      for (int32_t r = 0; r < p_.num_ranks; ++r) {
        if (post(op, r) || end_compute(op, r)) return true;
      }
      for (int64_t g = 0; p_.is_collective(op) && g < p_.num_groups(op); ++g) {
        if (begin_transfer(op, g) || end_transfer(op, g)) return true;
      }
    }
    return false;
  }

  bool post(OpId op, int32_t rank) {
    if (posted_.contains({op.index(), rank})) return false;
    for (const OpId before : deps_.preds[op.index()]) {
      if (!over(before, rank)) return false;
    }
    posted_[{op.index(), rank}] = now_;
    return true;
  }

  bool end_compute(OpId op, int32_t rank) {
    if (p_.is_collective(op) || over(op, rank) || !posted_.contains({op.index(), rank}))
      return false;
    const Nanoseconds begin = posted_[{op.index(), rank}];
    if (begin + p_.duration(op, rank) > now_) return false;
    spans_[{op.index(), rank, 0}] = {op, rank, lane_of(op), begin, begin, now_};
    over_.insert({op.index(), rank});
    return true;
  }

  /// Without an arbiter.
  bool begin_transfer(OpId op, int64_t number) {
    const auto first = static_cast<int32_t>(p_.group(op).first(number));
    if (arbitrated(op) || flights_.contains({op, number}) || over(op, first)) return false;
    if (!posted_by_group(op, number)) return false;
    flights_[{op, number}] = {now_, now_ + p_.chunk_ns(op, number)};
    return true;
  }

  bool end_transfer(OpId op, int64_t number) {
    const auto flight = flights_.find({op, number});
    if (flight == flights_.end() || flight->second.end > now_) return false;
    const int32_t chunk = chunks_[{op, number}]++;
    for (int32_t r = 0; r < p_.num_ranks; ++r) {
      if (!p_.in_group(op, number, r)) continue;
      const Nanoseconds post = chunk == 0 ? posted_[{op.index(), r}] : last_end_[{op, number}];
      spans_[{op.index(), r, chunk}] = {op,   r, lane_of(op), post, flight->second.begin,
                                        now_, 0, chunk};
      if (chunk + 1 == num_chunks(p_.graph, p_.schedule, op)) over_.insert({op.index(), r});
    }
    last_end_[{op, number}] = now_;
    flights_.erase(flight);
    return true;
  }

  bool held_back(OpId op) const {
    for (const Hold& hold : p_.schedule.holds) {
      if (arbiter_of(hold.until) != arbiter_of(op) || posted_by_all(hold.until)) continue;
      bool begun = false;
      for (int32_t r = 0; r < p_.num_ranks; ++r) begun |= posted_.contains({hold.from.index(), r});
      if (begun && p_.schedule.priority_of(op) < p_.schedule.priority_of(hold.until)) return true;
    }
    return false;
  }

  bool choose() {
    const int count = static_cast<int>(arbiters(p_.schedule).size());
    for (int arbiter = 0; arbiter < count; ++arbiter) {
      std::optional<OpId> best;
      bool busy = false;
      for (size_t i = 0; i < p_.graph.num_ops(); ++i) {
        const OpId op = op_id(i);
        if (arbiter_of(op) != arbiter) continue;
        for (int64_t g = 0; g < p_.num_groups(op); ++g) busy |= flights_.contains({op, g});
        if (!posted_by_all(op) || over(op, 0) || held_back(op)) continue;
        if (!best || p_.schedule.priority_of(op) > p_.schedule.priority_of(*best)) best = op;
      }
      if (busy || !best) continue;
      const Nanoseconds begin = now_ + p_.pick_ns;
      for (int64_t g = 0; g < p_.num_groups(*best); ++g) {
        flights_[{*best, g}] = {begin, begin + p_.chunk_ns(*best, g)};
      }
      return true;
    }
    return false;
  }

  const Program& p_;
  Dependencies deps_;
  Nanoseconds now_ = 0;
  std::map<std::pair<size_t, int32_t>, Nanoseconds> posted_;
  std::set<std::pair<size_t, int32_t>> over_;
  using InGroup = std::pair<OpId, int64_t>;  // op, number of the group
  std::map<InGroup, Flight> flights_;
  std::map<InGroup, int32_t> chunks_;
  std::map<InGroup, Nanoseconds> last_end_;
  std::map<Key, Span> spans_;
};

TEST_CASE("replay chooses as a machine does that looks at everything at every nanosecond") {
  size_t chunked = 0, holds = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    INFO("seed " << seed);
    const Program p = random_program(seed, 24, 1 + static_cast<int32_t>(seed % 4));
    holds += p.schedule.holds.size();
    const std::map<Key, Span> expected = SlowMachine(p).run();
    std::map<Key, Span> actual;
    for (const Span& span : replay(p.input()).spans) {
      chunked += span.chunk > 0;
      actual[{span.op.index(), span.rank, span.chunk}] = span;
    }
    REQUIRE(actual.size() == expected.size());
    for (const auto& [key, span] : expected) {
      const Span& got = actual.at(key);
      INFO("op " << std::get<0>(key) << " rank " << std::get<1>(key) << " chunk "
                 << std::get<2>(key));
      CHECK(got.post == span.post);
      CHECK(got.begin == span.begin);
      CHECK(got.end == span.end);
    }
  }
  CHECK(chunked > 100);
  CHECK(holds > 20);
}

TEST_CASE("10,000 steps with priorities and jitter of 20% on 2 to 4 ranks all end") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Program p = random_program(seed, 30, 2 + static_cast<int32_t>(seed % 3));
    Rng rng(seed);
    const std::vector<Nanoseconds> plain = p.durations;
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < plain.size(); ++i) p.durations[i] = plain[i] * (100 + rng.below(21));
      std::vector<int64_t> chunks(p.graph.num_ops());
      for (const Span& span : replay(p.input()).spans) ++chunks[span.op.index()];
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (chunks[i] != p.num_ranks * num_chunks(p.graph, p.schedule, op_id(i))) {
          FAIL("seed " << seed << ", step " << step << ": op " << i << " ran " << chunks[i]);
        }
      }
    }
  }
}

/// A compute op and two all-reduces that it makes possible, then an all-to-all after `last`.
struct Small {
  Program p;
  OpId first, low, high;
  Small() {
    first = p.graph.add_op("compute", "first", {}, {{"n", int64_t{10}}});
    low = p.graph.add_op("all_reduce", "low", {p.graph.out(first)}, {{"n", int64_t{10}}});
    const OpId last = p.graph.add_op("compute", "last", {p.graph.out(first)});
    high = p.graph.add_op("all_to_all", "high", {p.graph.out(last)});
    p.durations = {5, 100, 20, 30};
    p.schedule = default_schedule(p.graph);
    p.schedule.lanes[1].pick = Pick::kPriority;
    p.schedule.set_priority(high, 1);
    p.orders = lane_orders(p.graph, p.schedule);
  }
  std::vector<Span> spans(OpId op) const {
    std::vector<Span> found;
    for (const Span& span : replay(p.input()).spans) {
      if (span.op == op) found.push_back(span);
    }
    return found;
  }
};

TEST_CASE("a transfer is not interrupted, one in chunks is at their borders, a hold comes first") {
  Small whole;
  CHECK(whole.spans(whole.high)[0].begin == 105);
  CHECK(whole.spans(whole.high)[0].post == 25);
  Small cut;
  cut.p.schedule.set_chunk(cut.p.graph, cut.low, 4);  // of 40: ten of 10 ns
  CHECK(cut.spans(cut.high)[0].begin == 25);
  CHECK(cut.spans(cut.low).size() == 10);
  CHECK(cut.spans(cut.low)[1].end == 25);
  CHECK(cut.spans(cut.low)[2].post == 25);
  CHECK(cut.spans(cut.low)[2].begin == 55);
  Small held;
  held.p.schedule.holds = {{held.first, held.high, "test"}};
  CHECK(held.spans(held.high)[0].begin == 25);
  CHECK(held.spans(held.low)[0].begin == 55);
}

TEST_CASE("a policy chooses among what is ready, and one that does not is named") {
  Small s;
  Lane& lane = s.p.schedule.lanes[1];
  lane.pick = Pick::kPolicy;
  lane.stage = "mine";
  std::vector<size_t> offered;
  lane.choose = [&](std::span<const OpId> ready) {
    offered.push_back(ready.size());
    return ready.back();
  };
  CHECK(s.spans(s.low)[0].begin == 5);
  CHECK(offered == std::vector<size_t>{1, 1});
  lane.choose = [&](std::span<const OpId>) { return s.high; };
  CHECK_THROWS_WITH(s.spans(s.low), Catch::Contains("lane 'comm' (stage 'mine')") &&
                                        Catch::Contains("returned op 'high', which is not ready"));
  lane.choose = [](std::span<const OpId>) { return OpId(); };
  CHECK_THROWS_WITH(s.spans(s.low), Catch::Contains("returned no op, although 'low' is ready"));
}

}  // namespace
}  // namespace moe
