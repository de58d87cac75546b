// Collectives of ranks in one process against what the memory can do, in one run: all_to_all beside
// memcpy of the same bytes by as many threads, all_reduce in GB/s, the emulated link beside its
// model.
// Every row: median [lowest quarter, highest quarter] of the samples of rank 0.
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "engine/comm/local/emulated_link.h"
#include "engine/network/closed_form.h"
#include "tests/bench/measure.h"

namespace {

using moe::Bytes;
using moe::Nanoseconds;
using moe::bench::in_us;
using moe::bench::Spread;
using moe::bench::spread_of;

constexpr int64_t kRanks = 2;
constexpr int kSamples = 301;

void on_ranks(const std::function<void(int64_t)>& body) {
  std::thread other([&] { body(1); });
  body(0);
  other.join();
}

/// Both threads leave within a fraction of a microsecond.
void line_up(std::atomic<int64_t>& arrived, int64_t round) {
  arrived.fetch_add(1);
  while (arrived.load() < kRanks * (round + 1)) __builtin_ia32_pause();
}

moe::Pieces even_pieces(Bytes bytes) {
  return {1, {0, bytes}, {bytes, bytes}, {0, bytes}, {bytes, bytes}};
}

void bench_all_to_all() {
  fmt::print("all_to_all, {} ranks, us\n{:>12}{:>30}{:>30}{:>8}\n", kRanks, "KiB per pair",
             "all_to_all", "memcpy of the same bytes", "ratio");
  for (Bytes bytes = 64 << 10; bytes <= 16 << 20; bytes *= 2) {
    moe::InProcessWorld world(kRanks, 1, {});
    std::atomic<int64_t> arrived{0};
    std::vector<Nanoseconds> moved, copied;
    on_ranks([&](int64_t r) {
      const size_t all = static_cast<size_t>(kRanks * bytes);
      std::vector<char> send(all, 'a'), receive(all);
      const moe::Pieces pieces = even_pieces(bytes);
      for (int64_t i = 0; i < kSamples; ++i) {
        line_up(arrived, 2 * i);
        const moe::CommTimes t =
            world.comm(r, 0).all_to_all("a", send.data(), receive.data(), pieces);
        line_up(arrived, 2 * i + 1);
        const Nanoseconds start = moe::clock_ns();
        std::memcpy(receive.data(), send.data(), all);
        if (r == 0) {
          copied.push_back(moe::clock_ns() - start);
          moved.push_back(t.end - t.begin);
        }
      }
    });
    const Spread a = spread_of(moved), m = spread_of(copied);
    fmt::print("{:>12}{:>30}{:>30}{:>8.2f}\n", bytes >> 10, in_us(a), in_us(m),
               a.median / m.median);
  }
}

void bench_all_reduce() {
  fmt::print("\nall_reduce of float, {} ranks, in place, us; GB/s = bytes of one rank / time\n",
             kRanks);
  for (int64_t n = 16 << 10; n <= 8 << 20; n *= 4) {
    moe::InProcessWorld world(kRanks, 1, {});
    std::atomic<int64_t> arrived{0};
    std::vector<Nanoseconds> times;
    on_ranks([&](int64_t r) {
      std::vector<float> x(static_cast<size_t>(n));
      for (int64_t i = 0; i < kSamples; ++i) {
        line_up(arrived, i);
        const moe::CommTimes t = world.comm(r, 0).all_reduce("g", x.data(), x.data(), n);
        if (r == 0) times.push_back(t.end - t.begin);
      }
    });
    const Spread s = spread_of(times);
    fmt::print("{:>12} KiB{:>30}{:>8.1f} GB/s\n", n * 4 >> 10, in_us(s),
               static_cast<double>(n * 4) / s.median);
  }
}

void bench_emulated_link() {
  moe::Cluster link;
  link.devices_per_node = kRanks;
  link.intra = {.bytes_per_s = 1e9, .latency_ns = 10'000};
  link.nic = link.intra;
  fmt::print("\nall_to_all on an emulated link of 1 GB/s, us\n{:>12}{:>12}{:>30}\n", "KiB per pair",
             "model", "achieved");
  for (Bytes bytes = 64 << 10; bytes <= 4 << 20; bytes *= 4) {
    moe::InProcessWorld world(kRanks, 1, {});
    moe::EmulatedWire wire(link);
    std::vector<Nanoseconds> times;
    on_ranks([&](int64_t r) {
      const auto comm = moe::emulate_link(world.comm(r, 0), wire, 0);
      std::vector<char> send(static_cast<size_t>(kRanks * bytes)), receive(send.size());
      for (int i = 0; i < kSamples / 5; ++i) {
        const moe::CommTimes t =
            comm->all_to_all("a", send.data(), receive.data(), even_pieces(bytes));
        if (r == 0) times.push_back(t.end - t.begin);
      }
    });
    fmt::print("{:>12}{:>12.1f}{:>30}\n", bytes >> 10,
               moe::all_to_all_ns(link, static_cast<double>(bytes)) / 1e3, in_us(spread_of(times)));
  }
}

}  // namespace

int main() {
  bench_all_to_all();
  bench_all_reduce();
  bench_emulated_link();
  return 0;
}
