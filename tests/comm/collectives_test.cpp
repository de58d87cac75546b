#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/base/rng.h"
#include "engine/comm/communicator.h"
#include "tests/comm/ranks.h"

namespace moe {
namespace {

/// Bytes that rank `from` sends to rank `to` in group g; some are 0, some longer than a chunk.
Bytes piece_bytes(int64_t from, int64_t to, int64_t g, uint64_t seed) {
  Rng rng(seed + static_cast<uint64_t>((from * 17 + to) * 31 + g));
  const int64_t kind = rng.below(4);
  return kind == 0 ? 0 : kind == 1 ? 300'000 + rng.below(300'000) : rng.below(5000);
}

uint8_t content(int64_t from, int64_t to, int64_t g, Bytes at) {
  return static_cast<uint8_t>(
      hash32(static_cast<uint64_t>(at), static_cast<uint64_t>((from * 64 + to) * 64 + g)));
}

/// Send pieces lie in the order of peer and group, received ones in the order of group and peer,
/// with a gap of 3 bytes after each.
Pieces pieces_of(int64_t rank, int64_t num_ranks, int64_t groups, uint64_t seed) {
  const size_t n = index(num_ranks * groups);
  Pieces p{groups, std::vector<Bytes>(n), std::vector<Bytes>(n), std::vector<Bytes>(n),
           std::vector<Bytes>(n)};
  Bytes send_at = 0, receive_at = 0;
  for (int64_t peer = 0; peer < num_ranks; ++peer) {
    for (int64_t g = 0; g < groups; ++g) {
      const size_t i = index(peer * groups + g);
      p.send_offset[i] = send_at;
      p.send_bytes[i] = piece_bytes(rank, peer, g, seed);
      send_at += p.send_bytes[i] + 3;
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t peer = 0; peer < num_ranks; ++peer) {
      const size_t i = index(peer * groups + g);
      p.receive_offset[i] = receive_at;
      p.receive_bytes[i] = piece_bytes(peer, rank, g, seed);
      receive_at += p.receive_bytes[i] + 3;
    }
  }
  return p;
}

Bytes extent(const std::vector<Bytes>& offset, const std::vector<Bytes>& bytes) {
  Bytes end = 0;
  for (size_t i = 0; i < offset.size(); ++i) end = std::max(end, offset[i] + bytes[i] + 3);
  return end;
}

/// Makes the call and counts the received bytes that are wrong, gaps included.
int64_t wrong_bytes_of_all_to_all(Communicator& comm, int64_t groups, uint64_t seed) {
  const int64_t n = comm.size(), me = comm.rank();
  const Pieces p = pieces_of(me, n, groups, seed);
  std::vector<uint8_t> send(index(extent(p.send_offset, p.send_bytes)));
  std::vector<uint8_t> receive(index(extent(p.receive_offset, p.receive_bytes)), 0xEE);
  std::vector<uint8_t> expected = receive;
  for (int64_t peer = 0; peer < n; ++peer) {
    for (int64_t g = 0; g < groups; ++g) {
      const size_t i = index(peer * groups + g);
      for (Bytes b = 0; b < p.send_bytes[i]; ++b) {
        send[index(p.send_offset[i] + b)] = content(me, peer, g, b);
      }
      for (Bytes b = 0; b < p.receive_bytes[i]; ++b) {
        expected[index(p.receive_offset[i] + b)] = content(peer, me, g, b);
      }
    }
  }
  comm.all_to_all("a2a", send.data(), receive.data(), p);
  std::fill(send.begin(), send.end(), uint8_t{0});  // nobody may still read it
  int64_t wrong = 0;
  for (size_t i = 0; i < receive.size(); ++i) wrong += receive[i] != expected[i];
  return wrong;
}

TEST_CASE("all_to_all takes every piece to its place and writes nothing else") {
  const auto num_ranks = GENERATE(1, 2, 3, 5);
  const auto groups = GENERATE(1, 3);
  InProcessWorld world(num_ranks, 1, {});
  std::vector<int64_t> wrong(index(num_ranks), -1);
  const auto errors = run_ranks(num_ranks, [&](int64_t rank) {
    int64_t sum = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      sum += wrong_bytes_of_all_to_all(world.comm(rank, 0), groups, seed);
    }
    wrong[index(rank)] = sum;
  });
  CHECK(errors == no_errors(num_ranks));
  CHECK(wrong == std::vector<int64_t>(index(num_ranks), 0));
}

TEST_CASE("all_reduce sums every element in rank order, in place or not, for any length") {
  const int64_t num_ranks = 3;
  const int64_t n = GENERATE(0, 1, 1023, 1025, 100'003);
  const bool in_place = GENERATE(false, true);
  // Rounding makes the order visible: magnitudes from 2^-12 to 2^12.
  const auto value = [](int64_t rank, int64_t i) {
    Rng rng(static_cast<uint64_t>(rank * 1'000'003 + i));
    return static_cast<float>(
        std::ldexp(rng.uniform() - 0.5, static_cast<int>(rng.below(25)) - 12));
  };
  std::vector<float> expected(index(n));
  bool order_matters = false;
  for (int64_t i = 0; i < n; ++i) {
    expected[index(i)] = (value(0, i) + value(1, i)) + value(2, i);
    order_matters |= expected[index(i)] != (value(2, i) + value(1, i)) + value(0, i);
  }
  InProcessWorld world(num_ranks, 1, {});
  std::vector<std::vector<float>> out(num_ranks, std::vector<float>(index(n)));
  const auto errors = run_ranks(num_ranks, [&](int64_t rank) {
    std::vector<float> in(index(n));
    for (int64_t i = 0; i < n; ++i) in[index(i)] = value(rank, i);
    std::vector<float>& mine = out[index(rank)];
    if (in_place) mine = in;
    world.comm(rank, 0).all_reduce("grads", in_place ? mine.data() : in.data(), mine.data(), n);
  });
  CHECK(errors == no_errors(num_ranks));
  if (n > 1000) CHECK(order_matters);
  for (const auto& each : out) {
    REQUIRE((n == 0 || std::memcmp(each.data(), expected.data(), index(n) * sizeof(float)) == 0));
  }
}

/// Returns whether a reduce-scatter and an all-gather give the bits of an all-reduce of
/// `n` elements of T per member.
template <class T>
bool halves_make_the_whole(Communicator& comm, int64_t n, bool in_place, uint64_t seed) {
  const int64_t all = n * comm.size();
  Rng rng(seed + static_cast<uint64_t>(comm.rank()));
  std::vector<T> in(index(all)), whole(index(all)), own(index(n)), gathered(index(all));
  for (T& x : in) {
    x = static_cast<T>(std::ldexp(rng.uniform() - 0.5, static_cast<int>(rng.below(25)) - 12));
  }
  comm.all_reduce("grads", in.data(), whole.data(), all);
  T* const mine = in_place ? in.data() + comm.rank() * n : own.data();
  comm.reduce_scatter("grads", in.data(), mine, n);
  T* const to = in_place ? in.data() : gathered.data();
  comm.all_gather("grads", mine, to, n * static_cast<Bytes>(sizeof(T)));
  return n == 0 || std::memcmp(to, whole.data(), index(all) * sizeof(T)) == 0;
}

TEST_CASE("a reduce-scatter and an all-gather have the bits of an all-reduce, also in groups") {
  const int64_t n = GENERATE(0, 1, 7, 1025, 40'003);
  const bool in_place = GENERATE(false, true);
  InProcessWorld world(6, 1, {.timeout_s = 5});
  std::atomic<int> wrong{0};
  const auto errors = run_ranks(6, [&](int64_t rank) {
    uint64_t seed = 0;
    for (const Group group : {Group{6, 1}, {3, 1}, {3, 2}, {2, 3}, {1, 1}}) {
      Communicator& comm = world.comm(rank, 0).group(group);
      wrong += !halves_make_the_whole<float>(comm, n, in_place, seed += 100);
      wrong += !halves_make_the_whole<double>(comm, n, in_place, seed += 100);
    }
  });
  CHECK(errors == no_errors(6));
  CHECK(wrong == 0);
}

TEST_CASE("members of a reduce-scatter or an all-gather must have the same sizes") {
  for (const bool scatters : {true, false}) {
    InProcessWorld world(2, 1, {.timeout_s = 5});
    const auto errors = run_ranks(2, [&](int64_t rank) {
      std::vector<float> in(64), out(64);
      Communicator& comm = world.comm(rank, 0);
      if (scatters) {
        comm.reduce_scatter("g", in.data(), out.data(), 4 + rank);
      } else {
        comm.all_gather("g", in.data(), out.data(), 4 + rank);
      }
    });
    CHECK(errors[0].find(scatters ? "reduce_scatter g: rank 0 has elements 4, rank 1 has 5"
                                  : "all_gather g: rank 0 has bytes 4, rank 1 has 5") !=
          std::string::npos);
  }
}

TEST_CASE("all_reduce of doubles keeps what a float would lose") {
  InProcessWorld world(2, 1, {});
  std::vector<std::vector<double>> x = {{1.0, 2.0}, {1e-12, -2.0}};
  run_ranks(2, [&](int64_t r) {
    world.comm(r, 0).all_reduce("norm", x[index(r)].data(), x[index(r)].data(), 2);
  });
  CHECK(x[0] == std::vector<double>{1.0 + 1e-12, 0.0});
  CHECK(x[1] == x[0]);
}

TEST_CASE("nobody leaves a barrier before everybody has come") {
  InProcessWorld world(4, 1, {});
  std::atomic<int> here{0};
  std::atomic<int> early{0};
  run_ranks(4, [&](int64_t r) {
    for (int round = 1; round <= 200; ++round) {
      if (round % 50 == r) std::this_thread::sleep_for(std::chrono::microseconds(300));
      ++here;
      world.comm(r, 0).barrier("step");
      early += here < 4 * round;
      world.comm(r, 0).barrier("step end");
    }
  });
  CHECK(here == 800);
  CHECK(early == 0);
}

TEST_CASE("lanes are independent: a lane goes on while another waits") {
  InProcessWorld world(2, 2, {});
  std::atomic<int> stage{0};
  // Rank 1 comes to lane 0 only after lane 1 has finished.
  std::thread lane1_of_rank0([&] { world.comm(0, 1).barrier("lane 1"); });
  const auto errors = run_ranks(2, [&](int64_t r) {
    if (r == 1) {
      world.comm(1, 1).barrier("lane 1");
      stage = 1;
    }
    world.comm(r, 0).barrier("lane 0");
    if (r == 0 && stage != 1) throw RunError("lane 0 opened without rank 1");
  });
  lane1_of_rank0.join();
  CHECK(errors == no_errors(2));
}

TEST_CASE("a transfer begins when its last member posts and ends after that") {
  InProcessWorld world(3, 1, {});
  std::vector<CommTimes> times(3);
  run_ranks(3, [&](int64_t r) {
    world.comm(r, 0).barrier("line up");
    if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    times[index(r)] = world.comm(r, 0).barrier("b");
  });
  for (const CommTimes& t : times) {
    CHECK(t.begin == times[1].post);
    CHECK(t.end >= t.begin);
  }
  CHECK(times[0].begin - times[0].post > 15'000'000);
}

TEST_CASE("a call may be posted earlier than its thread comes, but not later") {
  InProcessWorld world(1, 1, {});
  Communicator& comm = world.comm(0, 0);
  const Nanoseconds now = clock_ns();
  comm.posted_at(now - 1000);
  CHECK(comm.barrier("early").begin == now - 1000);
  CHECK(comm.barrier("plain").post >= now);
  comm.posted_at(now + 1'000'000'000);
  CHECK(comm.barrier("future").post < now + 1'000'000'000);
}

TEST_CASE("thousands of mixed collectives on three lanes at once keep their results apart") {
  const int64_t num_ranks = 3, num_lanes = 3;
  InProcessWorld world(num_ranks, num_lanes, {});
  std::atomic<int64_t> wrong{0};
  const auto errors = run_ranks(num_ranks * num_lanes, [&](int64_t i) {
    const int64_t rank = i % num_ranks, lane = i / num_ranks;
    Communicator& comm = world.comm(rank, lane);
    std::vector<float> x(64);
    for (int64_t round = 0; round < 700; ++round) {
      for (size_t j = 0; j < x.size(); ++j) x[j] = static_cast<float>(rank + 1);
      comm.all_reduce("sum", x.data(), x.data(), 64);
      wrong += x[63] != 6.0f;
      double each = static_cast<double>(lane + round);
      comm.all_reduce("double", &each, &each, 1);
      wrong += each != static_cast<double>(num_ranks * (lane + round));
    }
  });
  CHECK(errors == no_errors(num_ranks * num_lanes));
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace moe
