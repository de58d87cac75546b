// Members of a group meet among themselves.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/network/closed_form.h"
#include "tests/comm/ranks.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

/// One piece of `bytes` for each of n members.
Pieces even(int64_t n, Bytes bytes) {
  Pieces p{1, {}, std::vector<Bytes>(index(n), bytes), {}, std::vector<Bytes>(index(n), bytes)};
  for (int64_t i = 0; i < n; ++i) p.send_offset.push_back(i * bytes);
  p.receive_offset = p.send_offset;
  return p;
}

TEST_CASE("every group sums and exchanges within itself, in the order of its ranks") {
  const int64_t n = 8;
  for (const Group group : {Group{2, 1}, {4, 1}, {2, 4}, {4, 2}, {2, 2}, {1, 1}, {8, 1}}) {
    INFO("group " << group.size << " by " << group.stride);
    InProcessWorld world(n, 2, {.timeout_s = 5});
    std::vector<double> sums(index(n));
    std::vector<std::vector<int64_t>> received(index(n));
    const auto errors = run_ranks(n, [&](int64_t r) {
      for (int round = 0; round < 20; ++round) {
        Communicator& comm = world.comm(r, round % 2).group(group);
        MOE_CHECK(comm.size() == group.size && comm.rank() == group.place(r), "rank {} of {}",
                  comm.rank(), comm.size());  // Catch's assertions are for one thread
        const double mine = std::ldexp(1.0, static_cast<int>(r));
        comm.all_reduce("g", &mine, &sums[index(r)], 1);
        std::vector<int64_t> send;
        for (int64_t p = 0; p < group.size; ++p) send.push_back(100 * r + group.member(r, p));
        received[index(r)].assign(index(group.size), -1);
        comm.all_to_all("x", send.data(), received[index(r)].data(), even(group.size, 8));
        if (round % 3 == 0) world.comm(r, round % 2).barrier("all");  // groups and all take turns
      }
    });
    CHECK(errors == no_errors(n));
    for (int64_t r = 0; r < n; ++r) {
      double sum = 0;
      for (int64_t p = 0; p < group.size; ++p) {
        const int64_t peer = group.member(r, p);
        sum += std::ldexp(1.0, static_cast<int>(peer));
        CHECK(received[index(r)][index(p)] == 100 * peer + r);
      }
      CHECK(sums[index(r)] == sum);
    }
  }
}

TEST_CASE("a group waits for its own members only") {
  InProcessWorld world(4, 1, {.timeout_s = 5});
  const auto errors = run_ranks(4, [&](int64_t r) {
    if (r < 2) world.comm(r, 0).group({2, 1}).barrier("early");
  });
  CHECK(errors == no_errors(4));
}

TEST_CASE("all ranks as a group are the communicator itself") {
  InProcessWorld world(4, 1, {});
  CHECK(&world.comm(1, 0).group({}) == &world.comm(1, 0));
  CHECK(&world.comm(1, 0).group({4, 1}) == &world.comm(1, 0));
  CHECK(&world.comm(1, 0).group({2, 2}) == &world.comm(1, 0).group({2, 2}));
  CHECK(&world.comm(1, 0).group({2, 1}) != &world.comm(1, 0).group({2, 2}));
  CHECK_THROWS_AS(world.comm(1, 0).group({3, 1}), UserError);
}

TEST_CASE("the watchdog names the ranks of the group, not their places in it") {
  InProcessWorld world(6, 1, {.timeout_s = 0.05});
  const auto errors = run_ranks(6, [&](int64_t r) {
    if (r == 1) world.comm(r, 0).group({3, 2}).barrier("b1.moe.a2a_1");  // with 3 and 5
    if (r == 5) world.comm(r, 0).barrier("other");
  });
  CHECK_THAT(errors[1], Contains("rank 1: barrier b1.moe.a2a_1: ranks 3, 5 did not arrive") ||
                            Contains("rank 5: barrier other: ranks 0, 1, 2, 3, 4 did not"));
  CHECK_THAT(errors[1], Contains("rank 3 has made no call yet"));
}

TEST_CASE("members of a group that do not fit each other are named by their ranks") {
  InProcessWorld world(6, 1, {.timeout_s = 5});
  std::vector<char> from(64), to(64);
  auto errors = run_ranks(6, [&](int64_t r) {
    if (r % 3 != 2) return;
    const Pieces mine = r == 2 ? Pieces{1, {0, 8}, {8, 24}, {0, 8}, {8, 8}} : even(2, 8);
    world.comm(r, 0).group({2, 3}).all_to_all("a2a", from.data(), to.data(), mine);
  });
  for (const int64_t r : {2, 5}) {
    CHECK_THAT(errors[index(r)], Contains("rank 2 sends 24 bytes to rank 5, which expects 8"));
  }
}

TEST_CASE("abort reaches groups that have met, and those that meet later") {
  InProcessWorld world(4, 1, {.timeout_s = 60});
  const auto errors = run_ranks(4, [&](int64_t r) {
    if (r == 0) world.comm(r, 0).group({2, 1}).barrier("waits for 1");
    if (r == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.abort("rank 1 gave up");
    }
  });
  CHECK(errors[0] == "rank 0: barrier waits for 1: stopped: rank 1 gave up");
  CHECK_THROWS_WITH(world.comm(2, 0).group({2, 2}).barrier("late"), Contains("rank 1 gave up"));
}

TEST_CASE("a post time that was given counts for the group's call") {
  InProcessWorld world(4, 1, {.timeout_s = 5});
  std::vector<CommTimes> times(4);
  std::vector<Nanoseconds> ready(4);
  run_ranks(4, [&](int64_t r) {
    ready[index(r)] = clock_ns();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    world.comm(r, 0).posted_at(ready[index(r)]);
    times[index(r)] = world.comm(r, 0).group({2, 2}).barrier("x");
  });
  for (size_t r = 0; r < 4; ++r) {
    CHECK(times[r].post == ready[r]);
    CHECK(times[r].begin == std::max(ready[r % 2], ready[r % 2 + 2]));
  }
}

TEST_CASE(
    "on the emulated link groups share links, and together take what their closed form says") {
  Cluster link;
  link.nodes = 2;
  link.devices_per_node = 2;
  link.intra = {1e7, 10'000};
  link.nic = {1e6, 20'000};
  const Group across{2, 2};
  constexpr int64_t kFloats = 2000;
  const Nanoseconds model = all_to_all_ns(link, 4 * kFloats, across);
  REQUIRE(model == 2 * 8'000'000 + 40'000);  // both pairs share the NICs
  InProcessWorld world(4, 1, {.timeout_s = 5});
  EmulatedWire wire(link);
  std::vector<CommTimes> moved(4), reduced(4);
  std::vector<float> got(4);
  const auto errors = run_ranks(4, [&](int64_t r) {
    const auto comm = emulate_link(world.comm(r, 0), wire, 0);
    std::vector<float> x(2 * kFloats, static_cast<float>(r)), y(2 * kFloats);
    moved[index(r)] = comm->group(across).all_to_all("x", x.data(), y.data(), even(2, 4 * kFloats));
    got[index(r)] = 10 * y[0] + y[kFloats];
    reduced[index(r)] = comm->group(across).all_reduce("g", x.data(), x.data(), kFloats);
  });
  CHECK(errors == no_errors(4));
  CHECK(got == std::vector<float>{2, 13, 2, 13});
  for (size_t r = 0; r < 4; ++r) {
    CHECK(moved[r].begin == moved[r % 2].begin);
    CHECK(moved[r].end == moved[r % 2].end);
    const AllReduce own = {
        .bytes = 4 * kFloats, .algorithm = link.all_reduce, .rank = static_cast<int64_t>(r)};
    CHECK(reduced[r].end - reduced[r].begin >= all_reduce_ns(link, own, across));
  }
  // Both all-reduces together: each sends its 8,000 bytes once over the NICs.
  CHECK(std::max(reduced[0].end, reduced[1].end) - std::min(reduced[0].begin, reduced[1].begin) >=
        16'000'000);
  // One that begins before the other has the NICs for itself for a moment; none of it is idle.
  const Nanoseconds begin = std::min(moved[0].begin, moved[1].begin);
  CHECK(std::max(moved[0].end, moved[1].end) - begin >= model - 1);
}

}  // namespace
}  // namespace moe
