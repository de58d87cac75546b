#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "engine/comm/transport/control_channel.h"
#include "tests/comm/ranks.h"
#include "tests/job/programs/ranks.h"

namespace moe::test {
namespace {

/// What a rank received, or summed, as bytes.
using Bytewise = std::vector<unsigned char>;

template <class T>
void append(Bytewise& all, const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(values.data());
  all.insert(all.end(), bytes, bytes + values.size() * sizeof(T));
}

std::mt19937_64 generator(int64_t round, int64_t rank) {
  return std::mt19937_64(static_cast<uint64_t>(round * 1000 + rank));
}

/// Sizes of the pieces from one member to another, the same wherever they are asked for. Some are
/// empty, and some large enough not to be sent before they are awaited.
std::vector<Bytes> sizes(int64_t round, int64_t from, int64_t to, int64_t groups) {
  std::mt19937_64 random(static_cast<uint64_t>(round * 10'000 + from * 100 + to));
  std::vector<Bytes> result;
  for (int64_t g = 0; g < groups; ++g) {
    const auto draw = static_cast<Bytes>(random());
    result.push_back(draw % 4 == 0 ? 0 : std::abs(draw) % (round % 3 == 0 ? 200'000 : 50));
  }
  return result;
}

/// An all-to-all with gaps between pieces, or without; what was received, gaps as they were.
Bytewise exchange(Communicator& comm, int64_t round) {
  const int64_t n = comm.size(), me = comm.rank(), groups = 1 + round % 3;
  const Bytes gap = round % 2 == 0 ? 0 : 5;
  Pieces pieces;
  pieces.groups = groups;
  Bytes sent = gap, received = gap;
  for (int64_t p = 0; p < n; ++p) {
    const auto out = sizes(round, me, p, groups), in = sizes(round, p, me, groups);
    for (int64_t g = 0; g < groups; ++g) {
      pieces.send_offset.push_back(sent);
      pieces.receive_offset.push_back(received);
      pieces.send_bytes.push_back(out[static_cast<size_t>(g)]);
      pieces.receive_bytes.push_back(in[static_cast<size_t>(g)]);
      sent += pieces.send_bytes.back() + gap;
      received += pieces.receive_bytes.back() + gap;
    }
  }
  auto random = generator(round, me);
  Bytewise from(static_cast<size_t>(sent)), to(static_cast<size_t>(received), 0xee);
  for (unsigned char& byte : from) byte = static_cast<unsigned char>(random());
  comm.all_to_all("exchange", from.data(), to.data(), pieces);
  return to;
}

template <class T>
std::vector<T> sum(Communicator& comm, int64_t round, size_t n) {
  auto random = generator(round, comm.rank());
  std::normal_distribution<T> normal(0, static_cast<T>(std::pow(10.0, round % 5)));
  std::vector<T> in(n), out(n);
  for (T& x : in) x = normal(random);
  if (round % 2 == 0) {
    comm.all_reduce("sum", in.data(), in.data(), static_cast<int64_t>(n));
    return in;
  }
  comm.all_reduce("sum", in.data(), out.data(), static_cast<int64_t>(n));
  return out;
}

/// The sums of this member's n elements, then those of all.
std::vector<float> halves(Communicator& comm, int64_t round, int64_t n) {
  auto random = generator(round, comm.rank());
  std::normal_distribution<float> normal(0, 1e3f);
  std::vector<float> in(static_cast<size_t>(n * comm.size())), own(static_cast<size_t>(n));
  for (float& x : in) x = normal(random);
  float* const mine = round % 2 == 0 ? in.data() + comm.rank() * n : own.data();
  comm.reduce_scatter("halves", in.data(), mine, n);
  comm.all_gather("halves", mine, in.data(), n * Bytes{sizeof(float)});
  return in;
}

/// All kinds of calls, among all ranks and in groups. The same on both kinds of communicators.
Bytewise mixture(Communicator& all, int64_t rounds) {
  Bytewise result;
  for (int64_t round = 0; round < rounds; ++round) {
    append(result, exchange(all, round));
    append(result, sum<float>(all, round, round % 4 == 0 ? 100'003 : 7));
    append(result, sum<double>(all, round, 1));
    for (const Group& group : {Group{all.size() / 2, 1}, Group{2, all.size() / 2}}) {
      append(result, exchange(all.group(group), round + 100));
      append(result, sum<float>(all.group(group), round + 100, 1001));
      append(result, halves(all.group(group), round, round % 4 == 0 ? 30'001 : 5));
    }
    all.barrier("round");
  }
  return result;
}

void same_bits(Processes& processes) {
  constexpr int64_t kLanes = 3, kRounds = 12;
  const auto lanes = processes.lanes(kLanes, 20);
  std::vector<Bytewise> got(kLanes);
  const auto errors = run_ranks(kLanes, [&](int64_t lane) {
    got[static_cast<size_t>(lane)] = mixture(*lanes[static_cast<size_t>(lane)], kRounds);
  });
  for (const std::string& error : errors) expect(processes, error.empty(), error);
  InProcessWorld world(processes.size(), 1, {});
  std::vector<Bytewise> expected(static_cast<size_t>(processes.size()));
  run_ranks(processes.size(), [&](int64_t rank) {
    expected[static_cast<size_t>(rank)] = mixture(world.comm(rank, 0), kRounds);
  });
  for (const Bytewise& lane : got) {
    expect(processes, lane == expected[static_cast<size_t>(processes.rank())],
           "the bits of ranks in one process");
  }
}

/// From rank 0 nothing to itself and more than 64 MB to rank 1, and as much back; odd sizes else.
void large(Processes& processes) {
  constexpr Bytes kLarge = 70'000'003;
  const int64_t n = processes.size(), me = processes.rank();
  const auto bytes = [&](int64_t from, int64_t to) -> Bytes {
    if (from + to == 1) return kLarge;
    return from == to ? 0 : (from * n + to) % 3 * 100'001;
  };
  const auto byte = [](int64_t from, int64_t to, size_t i) {
    return static_cast<unsigned char>((static_cast<size_t>(from * 31 + to * 7) + i) * 2654435761 >>
                                      13);
  };
  Pieces pieces;
  Bytes sent = 0, received = 0;
  for (int64_t p = 0; p < n; ++p) {
    pieces.send_offset.push_back(sent);
    pieces.receive_offset.push_back(received);
    pieces.send_bytes.push_back(bytes(me, p));
    pieces.receive_bytes.push_back(bytes(p, me));
    sent += bytes(me, p);
    received += bytes(p, me);
  }
  Bytewise from, to(static_cast<size_t>(received)), expected;
  for (int64_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < static_cast<size_t>(bytes(me, p)); ++i) from.push_back(byte(me, p, i));
    for (size_t i = 0; i < static_cast<size_t>(bytes(p, me)); ++i) {
      expected.push_back(byte(p, me, i));
    }
  }
  Communicator& comm = *processes.lanes(1, 20)[0];
  for (int i = 0; i < 2; ++i) {
    std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
    comm.all_to_all("large", from.data(), to.data(), pieces);
    expect(processes, to == expected, "every byte in its place");
  }
}

void texts(Processes& processes) {
  const int64_t rank = processes.rank();
  expect(processes, processes.size_here() == processes.size() && processes.place_here() == rank,
         "all are on this machine");
  const std::string own(static_cast<size_t>(rank * 100'000), static_cast<char>('a' + rank));
  expect(processes, processes.broadcast("plan", rank == 0 ? "of rank 0" : "other") == "of rank 0",
         "a broadcast gives rank 0's text");
  const auto all = processes.gather("parts", own);
  expect(processes, all.size() == (rank == 0 ? static_cast<size_t>(processes.size()) : 0),
         "rank 0 alone gathers");
  for (size_t r = 0; r < all.size(); ++r) {
    expect(processes, all[r] == std::string(r * 100'000, static_cast<char>('a' + r)),
           "texts by rank");
  }
  expect(processes, processes.scatter("parts", all) == own, "each gets its own back");
}

/// Of any length, from all to all at once; two kinds that never meet.
void messages(Processes& processes) {
  constexpr int64_t kMessages = 300;
  const int64_t n = processes.size(), me = processes.rank();
  const auto text = [](int64_t from, int64_t to, int64_t number) {
    const int64_t length = 1 + number % 7 * (number % 50 == 0 ? 20'000 : 5);
    return std::to_string(number) + std::string(static_cast<size_t>(length + from), 'a') +
           std::to_string(to);
  };
  ControlChannel &first = processes.control_channel(0), &second = processes.control_channel(1);
  for (int64_t number = 0; number < kMessages; ++number) {
    for (int64_t to = 0; to < n; ++to) {
      if (to == me) continue;
      first.send(to, text(me, to, number));
      if (number == 0) second.send(to, "other");
    }
  }
  std::vector<int64_t> got(static_cast<size_t>(n));
  got[static_cast<size_t>(me)] = kMessages;
  while (std::any_of(got.begin(), got.end(), [](int64_t count) { return count < kMessages; })) {
    const auto message = first.read();
    expect(processes, !processes.failed(), "nobody fails");
    if (!message) continue;
    int64_t& count = got[static_cast<size_t>(message->peer)];
    expect(processes, message->text == text(message->peer, me, count),
           "in the order of the sender");
    ++count;
  }
  expect(processes, !first.read(), "no more");
  for (int64_t left = n - 1; left > 0;) left -= second.read() ? 1 : 0;
}

void clock(Processes& processes) {
  // They share a machine, and so a clock, which messages find again.
  const Nanoseconds found = processes.to_common(0);
  expect(processes, std::abs(found) <= processes.clock_error(),
         "a distance of " + std::to_string(found) + " ns");
  expect(processes, processes.from_common(processes.to_common(5)) == 5, "there and back");
}

void begins(Processes& processes) {
  Communicator& comm = *processes.lanes(1, 20)[0];
  comm.barrier("first");
  if (processes.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Nanoseconds asked = clock_ns();
  const CommTimes times = comm.barrier("late");
  if (processes.rank() != 1) {
    expect(processes, times.begin - times.post > 30'000'000, "it begins when the last one posts");
  }
  expect(processes, times.post >= asked && times.begin >= times.post && times.end >= times.begin,
         "post, begin, end");
}

void never_comes(Processes& processes) {
  Communicator& comm = *processes.lanes(1, 0.3)[0];
  comm.barrier("first");
  if (processes.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  comm.barrier("second");
}

void other_call(Processes& processes) {
  Communicator& comm = *processes.lanes(1, 20)[0];
  std::vector<float> x(8);
  if (processes.rank() == 0) comm.all_reduce("g", x.data(), x.data(), 8);
  if (processes.rank() != 0) comm.all_reduce("h", x.data(), x.data(), 8);
}

void other_size(Processes& processes) {
  Communicator& comm = *processes.lanes(1, 20)[0];
  std::vector<char> from(100), to(100);
  const Pieces pieces = processes.rank() == 0 ? Pieces{1, {0, 8}, {8, 24}, {0, 8}, {8, 16}}
                                              : Pieces{1, {0, 16}, {16, 8}, {0, 20}, {20, 8}};
  comm.all_to_all("b1.a2a", from.data(), to.data(), pieces);
}

void other_script(Processes& processes) {
  processes.broadcast(processes.rank() == 0 ? "plan 1" : "write results.json", "");
}

/// Rank 1's process ends its life, or stands still, while the others wait for as long as it lives.
void killed(Processes& processes) {
  processes.gather("all are here", "");
  if (processes.rank() == 1) raise(SIGKILL);
  processes.gather("the end", "");
}
void leader_killed(Processes& processes) {
  processes.gather("all are here", "");
  if (processes.is_root()) raise(SIGKILL);
  processes.broadcast("the end", "");
}
void stopped(Processes& processes) {
  processes.gather("all are here", "");
  if (processes.rank() == 1) raise(SIGSTOP);
  processes.gather("the end", "");
}

void failed_elsewhere(Processes& processes) {
  Communicator& comm = *processes.lanes(1, 60)[0];
  if (processes.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others wait by then
    processes.fail("rank 1: b3.fc1 made a NaN");
    return comm.barrier("mine"), void();
  }
  comm.barrier("step 4");
}

}  // namespace

Cases comm_cases() {
  return {{"same_bits", same_bits},
          {"large", large},
          {"texts", texts},
          {"messages", messages},
          {"clock", clock},
          {"begins", begins},
          {"never_comes", never_comes},
          {"other_call", other_call},
          {"other_size", other_size},
          {"other_script", other_script},
          {"killed", killed},
          {"leader_killed", leader_killed},
          {"stopped", stopped},
          {"failed_elsewhere", failed_elsewhere}};
}

}  // namespace moe::test
