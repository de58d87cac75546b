// Copies that are paced like a network's transfer: the bytes, and the time that they take.
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "engine/base/rng.h"
#include "engine/exec/device/emulated_link_driver.h"
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;

namespace {

std::vector<int32_t> random_words(int64_t n, uint64_t stream) {
  std::vector<int32_t> flags(static_cast<size_t>(n));
  for (size_t i = 0; i < flags.size(); ++i) flags[i] = static_cast<int32_t>(random24(i, stream));
  return flags;
}

/// The list as paced_copies takes it, once for the whole case.
struct Paced {
  void give(kernels::Stream stream, int64_t duration_ns, int32_t blocks,
            const kernels::LinkSignal& signal = {}) const {
    gpu().paced_copies(copies.data(), static_cast<int64_t>(copies.size()), duration_ns, blocks,
                       signal, stream);
  }
  std::vector<kernels::Copy> copies;
};

/// Words that transfers and this thread tell each other, one of each.
class Words {
 public:
  explicit Words(int64_t count)
      : count_(static_cast<size_t>(count)),
        flags_(static_cast<kernels::LinkFlags*>(
            gpu().allocate_host(count * static_cast<int64_t>(sizeof(kernels::LinkFlags))))) {
    REQUIRE(flags_);
    std::memset(static_cast<void*>(flags_), 0, static_cast<size_t>(count) * sizeof *flags_);
  }
  Words(const Words&) = delete;
  ~Words() { gpu().release_host(flags_); }
  kernels::LinkSignal signal(int64_t i) const { return {&flags_[i], 1, 1}; }
  std::span<kernels::LinkFlags> all() const { return {flags_, count_}; }

  bool has_begun(int64_t i) const { return std::atomic_ref(flags_[i].begun).load() == 1; }
  int64_t began_ns(int64_t i) const { return flags_[i].began_ns; }
  void let_end(int64_t i) const { std::atomic_ref(flags_[i].over).store(1); }

 private:
  const size_t count_;
  kernels::LinkFlags* const flags_;
};

using HostClock = std::chrono::steady_clock;
constexpr std::chrono::seconds kTooLong(10);

}  // namespace

TEST_CASE("paced copies bring all bytes of all copies and none beside them") {
  const OwnStream stream;
  for (const int32_t blocks : {1, 4, 16}) {
    std::vector<DeviceArray<int32_t>> from, to;
    Paced paced;
    const std::vector<int64_t> sizes = {1, 5, 1000, 65536, 300001};
    for (size_t i = 0; i < sizes.size(); ++i) {
      from.emplace_back(gpu(), random_words(sizes[i] + 2, i));
      to.emplace_back(gpu(), std::vector<int32_t>(static_cast<size_t>(sizes[i] + 2), -1));
      // An odd place to begin and an end that is not whole flags.
      paced.copies.push_back({to.back().data() + 1, from.back().data() + 1, 4 * sizes[i] - 3});
    }
    paced.copies.push_back({to[0].data(), from[0].data(), 0});
    paced.give(stream, 200'000, blocks);
    stream.finish();
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<int32_t> want(static_cast<size_t>(sizes[i] + 2), -1);
      const auto sent = from[i].read();
      std::memcpy(want.data() + 1, sent.data() + 1, static_cast<size_t>(4 * sizes[i] - 3));
      CHECK((to[i].read() == want));
    }
  }
}

TEST_CASE("paced copies last as long as they are told, within 2%", "[time]") {
  const OwnStream stream(true);
  for (const int32_t blocks : {1, 4, 16})
    for (const int64_t bytes : {1 << 16, 1 << 22}) {
      const DeviceArray<char> from(gpu(), bytes), to(gpu(), bytes);
      gpu().fill(from.data(), 0x5b, bytes, stream);
      const Paced paced = {{{to.data(), from.data(), bytes}}};
      paced.give(stream, 1000, blocks);
      for (const int64_t ns : {2'000'000, 10'000'000}) {
        INFO(blocks << " blocks, " << bytes << " bytes, " << ns << " ns");
        const double took = device_ns(stream, [&] { paced.give(stream, ns, blocks); });
        CHECK(took >= 0.999 * static_cast<double>(ns));  // two clocks of the device
        CHECK(took <= 1.02 * static_cast<double>(ns));
      }
    }
}

TEST_CASE("paced copies without bytes still take their time", "[time]") {
  const OwnStream stream;
  const DeviceArray<char> memory(gpu(), 16);
  const Paced paced = {{{memory.data(), memory.data() + 8, 0}}};
  paced.give(stream, 1000, 2);
  const double took = device_ns(stream, [&] { paced.give(stream, 3'000'000, 2); });
  CHECK((took >= 0.999 * 3e6 && took <= 1.02 * 3e6));
}

TEST_CASE("a transfer says when it begins, and ends when the host lets it") {
  const OwnStream stream(true);
  const int64_t bytes = 1 << 20;
  const DeviceArray<char> from(gpu(), bytes), to(gpu(), bytes);
  gpu().fill(from.data(), 0x5b, bytes, stream);
  // More copies than a launch takes: the first says, the last waits.
  Paced paced;
  for (int64_t i = 0; i < 256; ++i)
    paced.copies.push_back({to.data() + i * 4096, from.data() + i * 4096, 4096});
  const Words flags(1);
  bool begun = false;
  std::thread host([&] {
    const auto limit = HostClock::now() + kTooLong;
    while (!(begun = flags.has_begun(0)) && HostClock::now() < limit) std::this_thread::yield();
    flags.let_end(0);
  });
  paced.give(stream, 100'000, 4, flags.signal(0));
  stream.finish();
  host.join();
  CHECK(begun);
  CHECK(flags.began_ns(0) > 0);
  CHECK((to.read() == std::vector<char>(static_cast<size_t>(bytes), 0x5b)));
}

/// Two channels: an exchange of 32 MB, and later one of 8 MB on the same links.
struct TwoLanes {
  TwoLanes() {
    link.devices_per_node = 2;
    link.intra = {.bytes_per_s = 8e9, .latency_ns = 10'000};
  }
  static NetworkOp exchange(double bytes) { return {AllToAll{.bytes_per_pair = bytes}}; }

  Cluster link;
  OwnStream stream[2] = {OwnStream(true), OwnStream(true)};
  OwnEvent from[2] = {OwnEvent(true), OwnEvent(true)}, to[2] = {OwnEvent(true), OwnEvent(true)};
};

TEST_CASE(
    "transfers of two lanes that meet on the emulated link take what its model says, within 2%",
    "[time]") {
  const TwoLanes lanes;
  const int64_t bytes[] = {32 << 20, 8 << 20};
  const DeviceArray<char> from(gpu(), bytes[0]), to(gpu(), bytes[0]);
  const Words flags(3);
  EmulatedLinkDriver driver(lanes.link, flags.all());
  const auto now = [] {
    return std::chrono::nanoseconds(HostClock::now().time_since_epoch()).count();
  };
  gpu().sleep(0, driver.start_step(now()), lanes.stream[0]);
  for (size_t i = 0; i < 2; ++i) {
    const PacedTransfer transfer = driver.post(i, lanes.exchange(static_cast<double>(bytes[i])));
    if (i == 1) gpu().sleep(500'000, {}, lanes.stream[1]);
    const Paced paced = {{{to.data(), from.data(), bytes[i]}}};
    gpu().record(lanes.from[i], lanes.stream[i]);
    paced.give(lanes.stream[i], transfer.alone, 4, transfer.signal);
    gpu().record(lanes.to[i], lanes.stream[i]);
  }
  const auto limit = HostClock::now() + kTooLong;
  while (driver.look(now()) != kNever && HostClock::now() < limit) {
  }
  driver.let_all_end();
  for (const OwnStream& stream : lanes.stream) stream.finish();
  std::vector<NetworkOp> ops;
  for (size_t i = 0; i < 2; ++i) {
    ops.push_back(lanes.exchange(static_cast<double>(bytes[i])));
    ops.back().start_ns = flags.began_ns(static_cast<int64_t>(i) + 1) - flags.began_ns(1);
  }
  REQUIRE(ops[1].start_ns > 0);
  const auto model = run_collectives(lanes.link, ops, network_options(lanes.link)).ops;
  for (size_t i = 0; i < 2; ++i) {
    const auto by_model = static_cast<double>(model[i].end_ns - ops[i].start_ns);
    const double took = gpu().elapsed_ns(lanes.from[i], lanes.to[i]);
    INFO("transfer " << i << " took " << took << " ns, by the model " << by_model);
    CHECK(by_model > 1.2 * static_cast<double>(alone_ns(lanes.link, ops[i])));  // they met
    CHECK(took >= 0.999 * by_model);
    CHECK(took <= 1.02 * by_model);
  }
}
