// The one choice for all ranks, alone: what members are given, whoever posts when.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/comm/communicator.h"
#include "engine/exec/arbiter/local_arbiter.h"
#include "engine/exec/sync.h"
#include "tests/comm/ranks.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

using Catch::Contains;

const std::vector<LaneId> kLanes = {LaneId(1), LaneId(2)};

/// Transfers that wait for nothing, on two lanes that share a network, and ops that announce them.
struct Program {
  Graph graph{fake::table()};
  Schedule schedule;
  std::vector<OpId> transfers;

  Program(int64_t num_transfers, Rng& rng) {
    std::vector<OpId> announcers;
    for (int64_t i = 0; i < num_transfers; ++i) {
      announcers.push_back(graph.add_op("compute", fmt::format("a{}", i), {}));
      transfers.push_back(
          graph.add_op("all_reduce", fmt::format("t{}", i), {graph.out(announcers.back())}));
    }
    schedule = default_schedule(graph);
    schedule.lanes[1].pick = Pick::kPriority;
    schedule.lanes.push_back({"comm_reduce", LaneKind::kComm, Pick::kPriority});
    schedule.exclusive = {{kLanes, "test"}};
    for (const OpId op : transfers) {
      schedule.lane_of[op.index()] = kLanes[static_cast<size_t>(rng.below(2))];
      schedule.set_priority(op, rng.below(3));
      if (rng.below(2) == 0) schedule.set_chunk(graph, op, 1 + rng.below(message_bytes(graph, op)));
    }
    for (size_t i = 0; i < transfers.size(); i += 2) {
      schedule.holds.push_back({announcers[i], transfers[i], "test"});
    }
  }

  int64_t chunks(OpId op) const { return num_chunks(graph, schedule, op); }
  OpId announcer(OpId transfer) const { return OpId(transfer.value - 1); }
  LaneId lane(OpId op) const { return schedule.lane_of[op.index()]; }
};

/// What the next turn is by the words of the rule, from all that has happened so far.
class Oracle {
 public:
  Oracle(const Program& p, int64_t num_ranks) : p_(p), num_ranks_(num_ranks) {
    num_posted_.resize(p.graph.num_ops());
    ready_.resize(p.graph.num_ops());
    over_.resize(p.graph.num_ops());
    begun_.resize(p.graph.num_ops());
  }
  void begun(OpId op) { begun_[op.index()] = true; }
  void post(OpId op, Nanoseconds ready) {
    ++num_posted_[op.index()];
    ready_[op.index()] = std::max(ready_[op.index()], ready);
  }
  void done(OpId op, Nanoseconds end) {
    ++over_[op.index()];
    free_ = end;
  }
  std::optional<Turn> next() const {
    std::optional<Turn> best;
    for (const OpId op : p_.transfers) {
      if (!all_posted(op) || over_[op.index()] == p_.chunks(op) || held(op)) continue;
      if (best && p_.schedule.priority_of(op) <= p_.schedule.priority_of(best->op)) continue;
      best = Turn{op, over_[op.index()], std::max(free_, ready_[op.index()])};
    }
    return best;
  }

 private:
  bool all_posted(OpId op) const { return num_posted_[op.index()] == num_ranks_; }
  bool held(OpId op) const {
    for (const Hold& h : p_.schedule.holds) {
      if (begun_[h.from.index()] && !all_posted(h.until) &&
          p_.schedule.priority_of(op) < p_.schedule.priority_of(h.until)) {
        return true;
      }
    }
    return false;
  }

  const Program& p_;
  int64_t num_ranks_;
  std::vector<int64_t> num_posted_, over_;
  std::vector<Nanoseconds> ready_;
  std::vector<bool> begun_;
  Nanoseconds free_ = 0;
};

/// next() that fails the test instead of sleeping for ever.
Turn next_of(LocalArbiter& arbiter, int64_t rank, LaneId lane) {
  auto turn = std::async(std::launch::async, [&] { return arbiter.next(rank, lane); });
  if (turn.wait_for(std::chrono::seconds(20)) != std::future_status::ready) arbiter.abort();
  return turn.get();
}

/// Something that a rank does: it begins the op that announces a transfer, or posts this.
struct Step {
  int64_t rank;
  OpId transfer;
  bool post = false;
};

template <class T>
void shuffle(std::vector<T>& list, Rng& rng) {
  for (size_t i = list.size(); i > 1; --i) {
    std::swap(list[i - 1], list[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
}

std::vector<Step> random_steps(const Program& p, int64_t num_ranks, Rng& rng) {
  std::vector<Step> steps;
  for (const OpId op : p.transfers) {
    for (int64_t r = 0; r < num_ranks; ++r) steps.insert(steps.end(), 2, {r, op});
  }
  shuffle(steps, rng);
  for (size_t i = 0; i < steps.size(); ++i) {  // the second of the two is the post
    steps[i].post = std::any_of(
        steps.begin(), steps.begin() + static_cast<int64_t>(i), [&](const Step& earlier) {
          return earlier.rank == steps[i].rank && earlier.transfer == steps[i].transfer;
        });
  }
  return steps;
}

TEST_CASE("whoever posts when, all members are given what the rule says, one turn at a time") {
  int64_t cut = 0, waited = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    INFO("seed " << seed);
    Rng rng(seed);
    const int64_t num_ranks = 1 + rng.below(4);
    const Program p(8, rng);
    LocalArbiter arbiter(p.graph, p.schedule, kLanes, {.num_ranks = num_ranks});
    Oracle oracle(p, num_ranks);
    std::optional<Turn> flight;
    int64_t through = 0, turns = 0, expected = 0;
    Nanoseconds now = 100;
    const auto deliver = [&] {
      flight = oracle.next();
      if (!flight) return;
      for (int64_t r = 0; r < num_ranks; ++r) {
        const Turn turn = next_of(arbiter, r, p.lane(flight->op));
        REQUIRE(turn.op == flight->op);
        REQUIRE(turn.chunk == flight->chunk);
        REQUIRE(turn.since == flight->since);
        REQUIRE(turn.error == nullptr);
      }
    };
    const std::vector<Step> steps = random_steps(p, num_ranks, rng);
    for (auto at = steps.begin(); at != steps.end() || flight; now += 1 + rng.below(5)) {
      if (flight && (at == steps.end() || rng.below(3) == 0)) {
        arbiter.done(through, now);
        if (++through < num_ranks) continue;
        oracle.done(flight->op, now);
        through = 0;
        ++turns;
        cut += flight->chunk > 0;
        deliver();
        continue;
      }
      const Step step = *at++;
      if (!step.post) {
        arbiter.begun(step.rank, p.announcer(step.transfer));
        oracle.begun(p.announcer(step.transfer));
        continue;
      }
      const Nanoseconds ready = now - rng.below(5);
      arbiter.post(step.rank, {{step.transfer, ready}});
      oracle.post(step.transfer, ready);
      if (flight) ++waited;
      if (!flight) deliver();
    }
    for (const OpId op : p.transfers) expected += p.chunks(op);
    REQUIRE(turns == expected);
    arbiter.end_step();  // nothing is left
  }
  CHECK(cut > 100);
  CHECK(waited > 100);
}

TEST_CASE("threads of all members get the same turns, none before all are through with the last") {
  Rng rng(1);
  const int64_t num_ranks = 4;
  const Program p(40, rng);
  LocalArbiter arbiter(p.graph, p.schedule, kLanes, {.num_ranks = num_ranks});
  std::vector<std::atomic<int64_t>> num_taken(num_ranks), num_done(num_ranks);
  std::vector<std::vector<std::pair<OpId, int64_t>>> taken(num_ranks);
  std::atomic<int64_t> too_early = 0;
  const auto serve = [&](int64_t rank, LaneId lane) {
    int64_t left = 0;
    for (const OpId op : p.transfers) left += p.lane(op) == lane ? p.chunks(op) : 0;
    for (; left > 0; --left) {
      const Turn turn = arbiter.next(rank, lane);
      const int64_t before = num_taken[static_cast<size_t>(rank)]++;
      for (const auto& done : num_done) too_early += done < before;
      taken[static_cast<size_t>(rank)].emplace_back(turn.op, turn.chunk);
      ++num_done[static_cast<size_t>(rank)];
      arbiter.done(rank, clock_ns());
    }
  };
  const auto post = [&](int64_t rank) {
    Rng own(static_cast<uint64_t>(rank));
    std::vector<OpId> order = p.transfers;
    shuffle(order, own);
    for (const OpId op : order) {
      arbiter.begun(rank, p.announcer(op));
      std::this_thread::sleep_for(std::chrono::microseconds(own.below(100)));
      arbiter.post(rank, {{op, clock_ns()}});
    }
  };
  const auto errors = run_ranks(3 * num_ranks, [&](int64_t thread) {
    const int64_t rank = thread / 3, role = thread % 3;
    role == 0 ? post(rank) : serve(rank, kLanes[static_cast<size_t>(role - 1)]);
  });
  CHECK(errors == no_errors(3 * num_ranks));
  CHECK(too_early == 0);
  for (const auto& mine : taken) CHECK(mine == taken[0]);
  auto sorted = taken[0];
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::pair<OpId, int64_t>> all;
  for (const OpId op : p.transfers) {
    for (int64_t c = 0; c < p.chunks(op); ++c) all.emplace_back(op, c);
  }
  CHECK(sorted == all);
}

/// Ops of priority 0, 1, ... on one lane, whole and without holds.
Program rising(int64_t num_transfers) {
  Rng rng(5);
  Program p(num_transfers, rng);
  p.schedule.chunk_bytes.clear();
  p.schedule.holds.clear();
  for (size_t i = 0; i < p.transfers.size(); ++i) {
    p.schedule.lane_of[p.transfers[i].index()] = LaneId(1);
    p.schedule.set_priority(p.transfers[i], static_cast<int64_t>(i));
  }
  return p;
}

TEST_CASE("what one rank posted and another did not is told, but not while a transfer goes on") {
  const Program p = rising(3);
  const auto waits_for = [](int64_t rank, OpId) { return fmt::format("op {}", rank + 40); };
  LocalArbiter arbiter(p.graph, p.schedule, kLanes,
                       {.num_ranks = 2, .timeout_s = 0.1, .waits_for = waits_for});
  for (int64_t r = 0; r < 2; ++r) arbiter.post(r, {{p.transfers[0], 1}});
  arbiter.post(0, {{p.transfers[1], 1}});
  for (int64_t r = 0; r < 2; ++r) arbiter.next(r, LaneId(1));
  auto later = std::async(std::launch::async, [&] { return arbiter.next(0, LaneId(1)); });
  REQUIRE(later.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout);
  arbiter.post(1, {{p.transfers[1], 1}});
  for (int64_t r = 0; r < 2; ++r) arbiter.done(r, 2);
  CHECK(later.get().op == p.transfers[1]);
  arbiter.next(1, LaneId(1));
  for (int64_t r = 0; r < 2; ++r) arbiter.done(r, 3);

  arbiter.post(0, {{p.transfers[2], 1}});
  const Turn turn = arbiter.next(0, LaneId(1));
  CHECK(turn.op == p.transfers[2]);
  REQUIRE(turn.error);
  CHECK_THROWS_WITH(std::rethrow_exception(turn.error),
                    "rank 1 did not post this op within 0.1 s; rank 1 waits for op 41");
}

TEST_CASE("of ops that become ready at the same time the one of the highest priority begins") {
  const Program p = rising(3);
  LocalArbiter arbiter(p.graph, p.schedule, kLanes, {.num_ranks = 1});
  CHECK(!arbiter.try_next(0, LaneId(1)));
  arbiter.post(0, {{p.transfers[0], 1}, {p.transfers[2], 1}, {p.transfers[1], 1}});
  CHECK(!arbiter.try_next(0, LaneId(2)));
  const auto turn = arbiter.try_next(0, LaneId(1));
  REQUIRE(turn);
  CHECK(turn->op == p.transfers[2]);
}

TEST_CASE("whoever watches for all ranks hears of what none of its own posted, and who goes on") {
  const Program p = rising(2);
  std::vector<OpId> chosen;
  LocalArbiter arbiter(p.graph, p.schedule, kLanes,
                       {.num_ranks = 3, .timeout_s = 0.1, .chosen = [&](const Turn& turn) {
                          chosen.push_back(turn.op);
                        }});
  for (int64_t r = 0; r < 3; ++r) arbiter.post(r, {{p.transfers[0], 1}});
  CHECK(chosen == std::vector<OpId>{p.transfers[0]});
  CHECK(arbiter.under_way() == "ranks 0, 1, 2 did not finish op t0");
  for (int64_t r = 0; r < 3; ++r) {
    REQUIRE(arbiter.try_next(r, LaneId(1)));
    arbiter.done(r, 2);
  }
  CHECK(arbiter.under_way().empty());
  arbiter.post(2, {{p.transfers[1], 1}});
  CHECK(!arbiter.late());
  std::this_thread::sleep_for(std::chrono::milliseconds(120));
  const auto late = arbiter.late();
  REQUIRE(late);
  CHECK(late->op == p.transfers[1]);
  CHECK_THROWS_WITH(std::rethrow_exception(late->error),
                    "ranks 0, 1 did not post this op within 0.1 s");
}

TEST_CASE("abort ends every wait for a turn") {
  Rng rng(4);
  const Program p(2, rng);
  LocalArbiter arbiter(p.graph, p.schedule, kLanes, {.num_ranks = 1});
  auto waiting = std::async(std::launch::async, [&] { return arbiter.next(0, LaneId(1)); });
  arbiter.abort();
  CHECK_THROWS_AS(waiting.get(), Aborted);
}

/// An all-reduce and an all-to-all that become ready nearly at the same time on 2 ranks, with a
/// jitter of 20%, on lanes that share a network: a rank transfers one at a time.
struct TwoLanes {
  static constexpr int64_t kRanks = 2;
  static constexpr Nanoseconds kReady[2] = {200'000, 210'000};

  InProcessWorld world{kRanks, 2, {.timeout_s = 0.5}};

  Nanoseconds ready(int64_t step, int64_t rank, int64_t which) const {
    const auto n = static_cast<uint64_t>((step * kRanks + rank) * 2 + which);
    return kReady[which] * static_cast<Nanoseconds>(1000 + random24(n, 7) % 200) / 1000;
  }
  void transfer(int64_t rank, int64_t which) {
    std::vector<float> sent(2), received(2);
    Communicator& comm = world.comm(rank, which);
    if (which == 0) {
      comm.all_reduce("reduce", sent.data(), received.data(), 2);
    } else {
      comm.all_to_all("a2a", sent.data(), received.data(), {1, {0, 4}, {4, 4}, {0, 4}, {4, 4}});
    }
  }
};

void sleep_until(Nanoseconds at) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::max<Nanoseconds>(0, at - clock_ns())));
}

TEST_CASE("one choice for all takes the same ranks through 200 steps") {
  TwoLanes lanes;
  Rng rng(0);
  Program p(2, rng);
  p.schedule.chunk_bytes.clear();
  for (size_t i = 0; i < 2; ++i) p.schedule.lane_of[p.transfers[i].index()] = kLanes[i];
  LocalArbiter arbiter(p.graph, p.schedule, kLanes,
                       {.num_ranks = TwoLanes::kRanks, .timeout_s = 5});
  Rendezvous start(3 * TwoLanes::kRanks, [&] { arbiter.start_step(); }),
      end(3 * TwoLanes::kRanks, [&] { arbiter.end_step(); });
  const auto errors = run_ranks(3 * TwoLanes::kRanks, [&](int64_t thread) {
    const int64_t rank = thread / 3, which = thread % 3;
    for (int64_t step = 0; step < 200; ++step) {
      start.arrive();
      const Nanoseconds begin = clock_ns();
      if (which == 2) {
        for (const int64_t i : {0, 1}) {
          sleep_until(begin + lanes.ready(step, rank, i));
          arbiter.post(rank, {{p.transfers[static_cast<size_t>(i)], clock_ns()}});
        }
      } else {
        const Turn turn = arbiter.next(rank, kLanes[static_cast<size_t>(which)]);
        if (turn.error) std::rethrow_exception(turn.error);
        lanes.transfer(rank, which);
        arbiter.done(rank, clock_ns());
      }
      end.arrive();
    }
  });
  CHECK(errors == no_errors(3 * TwoLanes::kRanks));
}

}  // namespace
}  // namespace moe
