#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "engine/base/index.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/network/closed_form.h"
#include "tests/comm/ranks.h"

namespace moe {
namespace {

Cluster slow_link(int64_t ranks) {
  Cluster c;
  c.devices_per_node = ranks;
  c.intra = {.bytes_per_s = 1e6, .latency_ns = 20'000};
  c.nic = c.intra;
  return c;
}

TEST_CASE("wait_until never returns early, also for a time that is over") {
  for (const Nanoseconds ahead : {-5'000, 0, 3'000, 50'000, 100'000, 2'000'000}) {
    const Nanoseconds until = clock_ns() + ahead;
    wait_until_ns(until);
    CHECK(clock_ns() >= until);
  }
}

TEST_CASE(
    "an all_to_all moves its bytes and takes the time of its byte matrix from the last post") {
  const int64_t n = 3;
  const Cluster link = slow_link(n);
  InProcessWorld world(n, 1, {});
  EmulatedWire wire(link);
  // Rank i sends 1000 * (i + 1) * (j + 1) bytes to rank j, in two groups of unequal size.
  const auto bytes = [](int64_t i, int64_t j) { return 1000 * (i + 1) * (j + 1); };
  std::vector<double> matrix;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) matrix.push_back(static_cast<double>(bytes(i, j)));
  }
  const Nanoseconds model = all_to_all_v_ns(link, matrix);
  REQUIRE(model > 5'000'000);
  std::vector<CommTimes> times(index(n));
  std::vector<std::vector<char>> received(index(n), std::vector<char>(40'000));
  const auto errors = run_ranks(n, [&](int64_t r) {
    const auto comm = emulate_link(world.comm(r, 0), wire, 0);
    std::vector<char> send(40'000, static_cast<char>('a' + r));
    Pieces p{2, {}, {}, {}, {}};
    Bytes sent = 0, got = 0;
    for (int64_t peer = 0; peer < n; ++peer) {
      for (int64_t g = 0; g < 2; ++g) {
        const auto part = [&](Bytes b) { return g == 0 ? b / 4 : b - b / 4; };
        p.send_offset.push_back(sent);
        p.send_bytes.push_back(part(bytes(r, peer)));
        p.receive_offset.push_back(got);
        p.receive_bytes.push_back(part(bytes(peer, r)));
        sent += p.send_bytes.back();
        got += p.receive_bytes.back();
      }
    }
    if (r == 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    times[index(r)] = comm->all_to_all("a2a", send.data(), received[index(r)].data(), p);
  });
  CHECK(errors == no_errors(n));
  for (int64_t r = 0; r < n; ++r) {
    CHECK(times[index(r)].begin == times[2].post);
    CHECK(times[index(r)].end - times[index(r)].begin >= model);
    const Bytes from_0 = bytes(0, r), from_1 = bytes(1, r), from_2 = bytes(2, r);
    CHECK(std::string(received[index(r)].data(), index(from_0 + from_1 + from_2)) ==
          std::string(index(from_0), 'a') + std::string(index(from_1), 'b') +
              std::string(index(from_2), 'c'));
  }
}

TEST_CASE("an all-reduce lasts as long as its closed form") {
  const Cluster link = slow_link(2);
  InProcessWorld world(2, 1, {});
  EmulatedWire wire(link);
  std::vector<CommTimes> reduced(2);
  std::vector<std::vector<float>> x(2, std::vector<float>(2000, 1.5f));
  run_ranks(2, [&](int64_t r) {
    const auto comm = emulate_link(world.comm(r, 0), wire, 0);
    reduced[index(r)] = comm->all_reduce("g", x[index(r)].data(), x[index(r)].data(), 2000);
  });
  CHECK(x[0][1999] == 3.0f);
  for (size_t r = 0; r < 2; ++r) {
    CHECK(reduced[r].end - reduced[r].begin >= all_reduce_ns(link, {8000}));
  }
}

TEST_CASE("the wire of a lane carries one transfer at a time, however early the next was posted") {
  const Cluster link = slow_link(2);
  const Nanoseconds model = all_reduce_ns(link, {8000});
  InProcessWorld world(2, 1, {});
  EmulatedWire wire(link);
  std::vector<std::vector<CommTimes>> times(2);
  run_ranks(2, [&](int64_t r) {
    const auto comm = emulate_link(world.comm(r, 0), wire, 0);
    std::vector<float> x(2000);
    comm->barrier("start");
    const Nanoseconds ready = clock_ns();
    for (int i = 0; i < 3; ++i) {
      comm->posted_at(ready);
      times[index(r)].push_back(comm->all_reduce("g", x.data(), x.data(), 2000));
    }
  });
  for (size_t i = 1; i < 3; ++i) {
    CHECK(times[0][i].begin == times[0][i - 1].begin + model);
    CHECK(times[1][i].begin == times[0][i].begin);
  }
}

constexpr int64_t kFloats = 5000;  // of an all-reduce

struct Overlap {
  std::vector<CommTimes> exchanged, reduced;  // by rank
  Nanoseconds last_byte = 0;                  // on the run's clock
};

/// Every rank all-reduces on one lane, and `later` on exchanges `bytes` a pair on another.
Overlap overlap(const Cluster& link, Bytes bytes, std::chrono::microseconds later) {
  const int64_t n = link.num_devices();
  InProcessWorld world(n, 2, {});
  EmulatedWire wire(link, true);
  Overlap all{std::vector<CommTimes>(index(n)), std::vector<CommTimes>(index(n))};
  const auto errors = run_ranks(2 * n, [&](int64_t thread) {
    const int64_t r = thread % n, lane = thread / n;
    const auto comm = emulate_link(world.comm(r, lane), wire, lane);
    if (lane == 0) {
      std::vector<float> x(index(kFloats), 1);
      all.reduced[index(r)] = comm->all_reduce("g", x.data(), x.data(), kFloats);
      return;
    }
    std::this_thread::sleep_for(later);
    std::vector<char> send(index(n * bytes)), receive(send.size());
    Pieces p{1, {}, {}, {}, {}};
    for (int64_t peer = 0; peer < n; ++peer) {
      p.send_offset.push_back(peer * bytes);
      p.send_bytes.push_back(bytes);
    }
    p.receive_offset = p.send_offset;
    p.receive_bytes = p.send_bytes;
    all.exchanged[index(r)] = comm->all_to_all("a", send.data(), receive.data(), p);
  });
  CHECK(errors == no_errors(2 * n));
  for (const LinkUse& use : wire.take_use(0)) {
    all.last_byte = std::max<Nanoseconds>(all.last_byte, std::llround(use.end_ns));
  }
  return all;
}

TEST_CASE(
    "transfers that overlap on different lanes end as the link model has it for their begins") {
  for (const int64_t n : {2, 4}) {
    for (const Share share : {Share::kPerFlow, Share::kPerCollective}) {
      Cluster link = slow_link(n);
      link.share = share;
      link.sharing_efficiency = 0.7;
      const Bytes bytes = 12'000;
      const Overlap all = overlap(link, bytes, std::chrono::milliseconds(4));
      const Nanoseconds first = std::min(all.reduced[0].begin, all.exchanged[0].begin);
      NetworkOp reduce{AllReduce{.bytes = 4.0 * kFloats}};
      NetworkOp exchange{AllToAll{.bytes_per_pair = static_cast<double>(bytes)}};
      reduce.start_ns = all.reduced[0].begin - first;
      exchange.start_ns = all.exchanged[0].begin - first;
      const auto model = run_collectives(link, {reduce, exchange}, network_options(link)).ops;
      INFO(n << " ranks, " << name_of(share) << ", the exchange "
             << exchange.start_ns - reduce.start_ns << " ns later");
      for (size_t r = 0; r < index(n); ++r) {
        CHECK(all.reduced[r].begin == all.reduced[0].begin);
        CHECK(all.exchanged[r].begin == all.exchanged[0].begin);
        CHECK(all.reduced[r].end - first >= model[0].end_ns);
        CHECK(all.exchanged[r].end - first >= model[1].end_ns);
      }
      // The wire's own time, which no thread's waking blurs.
      CHECK(std::abs(all.last_byte - first - std::max(model[0].end_ns, model[1].end_ns)) <= 2);
    }
  }
}

TEST_CASE("a transfer that has ended when another lane posts takes its closed form") {
  const Cluster link = slow_link(2);
  const Bytes bytes = 5'000;
  const Nanoseconds alone = all_to_all_ns(link, static_cast<double>(bytes));
  const Nanoseconds reduce = all_reduce_ns(link, {4.0 * kFloats});
  Overlap all;
  const auto apart = [&] {
    return !all.reduced.empty() && all.exchanged[0].begin > all.reduced[0].begin + reduce;
  };
  // On a busy machine the thread of the all-reduce may begin later than the sleep of the other.
  for (int ms = 60; ms < 4000 && !apart(); ms *= 4) {
    all = overlap(link, bytes, std::chrono::milliseconds(ms));
  }
  REQUIRE(apart());
  CHECK(std::abs(all.last_byte - all.exchanged[0].begin - alone) <= 2);
}

TEST_CASE("an aborted wire wakes all who wait on it, with the reason, and carries nothing more") {
  Cluster link = slow_link(2);
  link.intra.bytes_per_s = 10;  // hours
  InProcessWorld world(2, 2, {});
  EmulatedWire wire(link);
  const Nanoseconds start = clock_ns();
  const auto errors = run_ranks(5, [&](int64_t thread) {
    if (thread == 4) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      wire.abort("rank 7 is lost");
      return;
    }
    const int64_t lane = thread / 2;
    const auto comm = emulate_link(world.comm(thread % 2, lane), wire, lane);
    std::vector<float> x(50'000);
    comm->all_reduce(lane == 0 ? "g" : "w", x.data(), x.data(), 50'000);
  });
  CHECK(clock_ns() - start < 60'000'000'000);
  CHECK(errors[0] == "rank 0: all_reduce g: stopped: rank 7 is lost");
  CHECK(errors[1] == "rank 1: all_reduce g: stopped: rank 7 is lost");
  CHECK(errors[2] == "rank 0: all_reduce w: stopped: rank 7 is lost");
  CHECK(errors[3] == "rank 1: all_reduce w: stopped: rank 7 is lost");
}

}  // namespace
}  // namespace moe
