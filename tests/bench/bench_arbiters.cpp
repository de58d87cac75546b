// What a turn of lanes that choose while the step runs costs its members, without any transfer:
// started plainly for 2 and 4 ranks that are threads, under mpirun for as many processes as there
// are. Median [lowest quarter, highest quarter] of all ranks' samples:
//   after a turn   from the end of a transfer on a rank to its next turn, all ops being ready
//   after a post   from the time at which all ranks post an op, the network idle, to the turn
#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <thread>

#include "engine/comm/job/launch.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/exec/arbiter/distributed_arbiter.h"
#include "engine/exec/sync.h"
#include "tests/bench/measure.h"
#include "tests/cost/fake_ops.h"

namespace {

using namespace moe;
using bench::in_us;
using bench::spread_of;

constexpr int64_t kTurns = 500;
constexpr Nanoseconds kBetween = 2'000'000;  // of posts
constexpr LaneId kLane(1);

struct Program {
  Graph graph{fake::table()};
  Schedule schedule;
  std::vector<OpId> ops;

  Program() {
    for (int64_t i = 0; i < 2 * kTurns; ++i) {
      ops.push_back(graph.add_op("all_reduce", fmt::format("t{}", i), {}));
    }
    schedule = default_schedule(graph);
    schedule.lanes[kLane.index()].pick = Pick::kPriority;
  }
};

struct Samples {
  std::vector<Nanoseconds> after_turn, after_post;
};

/// The lane of a rank, beside a thread that posts as a rank's compute lane does.
Samples serve(LaneArbiter& arbiter, const Program& p, int64_t rank, Nanoseconds start) {
  wake_promptly();
  Samples samples;
  std::thread compute([&] {
    std::vector<Ready> first;
    for (int64_t i = 0; i < kTurns; ++i) first.push_back({p.ops[static_cast<size_t>(i)], start});
    wait_until_ns(start);
    arbiter.post(rank, first);
    for (int64_t i = 0; i < kTurns; ++i) {
      const Nanoseconds at = start + 500'000'000 + i * kBetween;
      std::this_thread::sleep_for(std::chrono::nanoseconds(at - clock_ns()));
      arbiter.post(rank, {{p.ops[static_cast<size_t>(kTurns + i)], at}});
    }
  });
  Nanoseconds before = 0;
  for (int64_t i = 0; i < 2 * kTurns; ++i) {
    const Turn turn = arbiter.next(rank, kLane);
    if (turn.error) std::rethrow_exception(turn.error);
    const Nanoseconds now = clock_ns();
    if (i > 0 && i < kTurns) samples.after_turn.push_back(now - before);
    if (i >= kTurns) samples.after_post.push_back(now - turn.since);
    arbiter.done(rank, before = clock_ns());
  }
  compute.join();
  return samples;
}

void print(const std::string& who, const Samples& samples) {
  fmt::print("{}: after a turn {} us, after a post {} us\n", who,
             in_us(spread_of(samples.after_turn)), in_us(spread_of(samples.after_post)));
}

void add(std::vector<Nanoseconds>& all, const std::vector<Nanoseconds>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

void threads(const Program& p, int64_t num_ranks) {
  LocalArbiter arbiter(p.graph, p.schedule, {kLane}, {.num_ranks = num_ranks});
  arbiter.start_step();
  const Nanoseconds start = clock_ns() + 10'000'000;
  std::vector<Samples> by_rank(static_cast<size_t>(num_ranks));
  std::vector<std::thread> ranks;
  for (int64_t r = 0; r < num_ranks; ++r) {
    ranks.emplace_back([&, r] { by_rank[static_cast<size_t>(r)] = serve(arbiter, p, r, start); });
  }
  Samples all;
  for (std::thread& rank : ranks) rank.join();
  for (const Samples& one : by_rank) {
    add(all.after_turn, one.after_turn);
    add(all.after_post, one.after_post);
  }
  print(fmt::format("{} threads", num_ranks), all);
}

void processes(const Program& p) {
  Processes job;
  DistributedArbiter arbiter(p.graph, p.schedule, {kLane}, 0, job, {.num_ranks = job.size()});
  arbiter.start_step();
  const Nanoseconds start =
      std::stoll(job.broadcast("start", std::to_string(clock_ns() + 10'000'000)));
  const Samples own = serve(arbiter, p, job.rank(), job.from_common(start));
  arbiter.end_step();
  const auto gather = [&](const std::vector<Nanoseconds>& ns) {
    std::vector<Nanoseconds> all;
    const std::string bytes(reinterpret_cast<const char*>(ns.data()), ns.size() * sizeof ns[0]);
    for (const std::string& text : job.gather("samples", bytes)) {
      std::vector<Nanoseconds> one(text.size() / sizeof ns[0]);
      std::memcpy(one.data(), text.data(), text.size());
      add(all, one);
    }
    return all;
  };
  const Samples all = {gather(own.after_turn), gather(own.after_post)};
  if (job.is_root()) print(fmt::format("{} processes", job.size()), all);
  std::vector<Nanoseconds> barriers;
  Communicator& lane = *job.lanes(1, 30)[0];
  for (int64_t i = 0; i < kTurns; ++i) {
    const Nanoseconds begin = clock_ns();
    lane.barrier("barrier");
    barriers.push_back(clock_ns() - begin);
  }
  if (job.is_root()) fmt::print("a barrier of them {} us\n", in_us(spread_of(barriers)));
  job.finish();
}

}  // namespace

int main() {
  const Program program;
  if (!launched_rank()) {
    threads(program, 2);
    threads(program, 4);
  } else {
    processes(program);
  }
}
