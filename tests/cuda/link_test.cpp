// The emulated link's kernels, themselves emulated on the host with a clock that moves on when it
// is read. Never run on a GPU.
#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;
using kernels::Copy;

namespace {

/// Pieces of one buffer that go to another; between them lie bytes that nobody may touch.
struct Transfer {
  Transfer(int64_t count, int64_t most_bytes, uint64_t seed) {
    Rng rng(seed);
    int64_t at = 0;
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t align = std::vector<int64_t>{1, 4, 16}[static_cast<size_t>(rng.below(3))];
      at = (at + rng.below(40) + align - 1) / align * align;
      pieces.emplace_back(at, rng.below(most_bytes + 1));
      at += pieces.back().second;
      total += pieces.back().second;
    }
    // Rounded up: vectors of float4 are aligned, vectors of char need not be.
    from_memory.resize(static_cast<size_t>(at / 16 + 1));
    to_memory.resize(from_memory.size());
    want.assign(from_memory.size() * 16, 0);
    for (size_t i = 0; i < want.size(); ++i) from()[i] = static_cast<char>(1 + rng.below(255));
    for (const auto& [first, bytes] : pieces) {
      copies.push_back({to() + first, from() + first, bytes});
      std::copy_n(from() + first, bytes, want.begin() + first);
    }
  }
  char* from() { return reinterpret_cast<char*>(from_memory.data()); }
  char* to() { return reinterpret_cast<char*>(to_memory.data()); }
  bool arrived() { return std::equal(want.begin(), want.end(), to()); }
  int64_t bytes_arrived() {
    return std::count_if(to(), to() + want.size(), [](char c) { return c != 0; });
  }

  std::vector<float4> from_memory, to_memory;
  std::vector<char> want;
  std::vector<Copy> copies;
  int64_t total = 0;
};

/// Nanoseconds of the emulated clock.
int64_t send(Transfer& t, int64_t duration_ns, int32_t blocks,
             const kernels::LinkSignal& signal = {}) {
  const uint64_t before = emulation::read_clock();
  kernels::cuda::paced_copies(t.copies.data(), static_cast<int64_t>(t.copies.size()), duration_ns,
                              blocks, signal, nullptr);
  REQUIRE(kernels::cuda::take_error() == "");
  return static_cast<int64_t>(emulation::read_clock() - before);
}

}  // namespace

TEST_CASE("emulated on the host: paced copies bring all bytes, and no others, in their time") {
  uint64_t seed = 0;
  for (const int64_t count : {1, 3, 128, 129, 300})  // a launch takes 128
    for (const int32_t blocks : {1, 2, 5})
      for (const int64_t most : {70, 20000}) {
        if (count * most > 3000000) continue;
        emulation::set_order(seed++);
        Transfer t(count, most, seed);
        INFO(count << " copies of up to " << most << " bytes by " << blocks << " blocks");
        REQUIRE(send(t, 20000, blocks) >= 20000);
        REQUIRE(t.arrived());
      }
}

TEST_CASE("emulated on the host: one large copy goes in chunks by all blocks") {
  for (const int32_t blocks : {1, 3}) {
    Transfer t(1, 5000000, 7);
    REQUIRE(t.total > 1500000);
    CHECK(send(t, 1000, blocks) >= 1000);
    CHECK(t.arrived());
  }
}

TEST_CASE("emulated on the host: bytes never run ahead of the pace by more than a chunk") {
  const int64_t duration_ns = 100000;
  // One launch, and three that share the time. A chunk is a sixteenth of a launch's bytes, at least
  // 4 KB, and no longer than its piece.
  for (const auto& [count, most, chunk] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 200000, 12512}, {300, 400, 400}}) {
    Transfer t(count, most, 11);
    const int64_t began = static_cast<int64_t>(emulation::read_clock());
    int64_t reads = 0, furthest = 0;
    bool ahead = false;
    emulation::watch_clock([&](uint64_t now) {
      if (++reads % 8 != 0) return;
      const double share = static_cast<double>(static_cast<int64_t>(now) - began) / duration_ns;
      const int64_t arrived = t.bytes_arrived();
      ahead |= static_cast<double>(arrived - chunk) > share * static_cast<double>(t.total);
      if (share < 0.5) furthest = arrived;
    });
    send(t, duration_ns, 1);
    emulation::watch_clock({});
    CHECK_FALSE(ahead);
    CHECK(furthest > t.total / 3);  // nor does it all come at the end
    CHECK(t.arrived());
  }
}

TEST_CASE("emulated on the host: small copies are shared by all blocks") {
  emulation::set_order(0);  // one block after another
  Transfer t(120, 400, 5);
  std::vector<int64_t> after(4);
  emulation::watch_clock([&](uint64_t) { after[blockIdx.x] = t.bytes_arrived(); });
  send(t, 2000, 4);
  emulation::watch_clock({});
  for (size_t block = 0; block < 4; ++block) {
    const double share = static_cast<double>(after[block]) / static_cast<double>(t.total);
    CHECK(share == Approx(0.25 * static_cast<double>(block + 1)).margin(0.1));
  }
}

TEST_CASE("emulated on the host: a transfer of nothing and a sleep last as long as they say") {
  for (const int64_t ns : {0, 150, 70000}) {
    Transfer nothing(0, 0, 1);
    const int64_t lasted_ns = send(nothing, ns, 1);
    CHECK(lasted_ns >= ns);
    CHECK(lasted_ns < ns + 500);
    const uint64_t before = emulation::read_clock();
    kernels::cuda::sleep(ns, {}, nullptr);
    const auto slept_ns = static_cast<int64_t>(emulation::read_clock() - before);
    CHECK(slept_ns >= ns);
    CHECK(slept_ns < ns + 500);
  }
}

TEST_CASE("paced copies by no block are refused") {
  kernels::cuda::paced_copies(nullptr, 0, 1, 0, {}, nullptr);
  CHECK(kernels::cuda::take_error() == "cuda: paced_copies got 0 blocks; at least 1 is needed");
}

TEST_CASE("emulated on the host: a transfer says when it begins and ends when the host lets it") {
  emulation::set_order(0);                 // the first block says so
  for (const int64_t count : {0, 3, 300})  // a launch takes 128
    for (const int32_t blocks : {1, 4}) {
      INFO(count << " copies by " << blocks << " blocks");
      Transfer t(count, 400, 17);
      kernels::LinkFlags flags = {};
      int64_t looks = 0, begun_after = 0;
      const auto began = static_cast<int64_t>(emulation::read_clock());
      // The host looks each time that the device does something; it lets the transfer end late.
      emulation::watch_clock([&](uint64_t now) {
        ++looks;
        if (flags.begun == 7 && begun_after == 0) begun_after = looks;
        if (static_cast<int64_t>(now) >= began + 60000) flags.over = 7;
      });
      const int64_t lasted_ns = send(t, 20000, blocks, {&flags, 7, 7});
      emulation::watch_clock({});
      CHECK(lasted_ns >= 60000);
      if (blocks == 1) CHECK(lasted_ns < 63000);  // several run one after another
      CHECK(flags.began_ns > began);
      CHECK(flags.began_ns < began + 1000);
      CHECK((begun_after > 0 && begun_after < 10));
      CHECK(t.arrived());
    }
}

TEST_CASE("emulated on the host: what the host has let end long ago lasts as long as it says") {
  kernels::LinkFlags flags = {0, 0, 9};
  Transfer t(5, 3000, 3);
  const int64_t lasted_ns = send(t, 20000, 2, {&flags, 9, 9});
  CHECK(lasted_ns >= 20000);
  CHECK(lasted_ns < 45000);  // two blocks, one after another
  CHECK(flags.begun == 9);
  kernels::LinkFlags silent = {};
  const auto before = static_cast<int64_t>(emulation::read_clock());
  kernels::cuda::sleep(1000, {&silent, 0, 0}, nullptr);
  kernels::cuda::sleep(0, {&silent, 4, 0}, nullptr);
  CHECK(silent.begun == 4);
  CHECK(silent.began_ns >= before + 1000);
  const kernels::LinkFlags written = silent;
  kernels::cuda::sleep(1000, {&silent, 4, 0}, nullptr);  // another kernel of the same transfer
  CHECK(silent.began_ns == written.began_ns);
  CHECK(kernels::cuda::take_error() == "");
}
