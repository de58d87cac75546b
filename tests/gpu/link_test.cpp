// Copies that are paced like a network's transfer: the bytes, and the time that they take.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/base/rng.h"
#include "tests/gpu/gpu.h"

using namespace moe;
using namespace moe::test;

namespace {

std::vector<int32_t> random_words(int64_t n, uint64_t stream) {
  std::vector<int32_t> words(static_cast<size_t>(n));
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<int32_t>(random24(i, stream));
  return words;
}

/// The list as paced_copies takes it, once for the whole case.
struct Paced {
  void give(kernels::Stream stream, int64_t duration_ns, int32_t blocks,
            const kernels::LinkTurn& turn = {}) const {
    gpu().paced_copies(copies.data(), static_cast<int64_t>(copies.size()), duration_ns, blocks,
                       turn, stream);
  }
  std::vector<kernels::Copy> copies;
};

/// Words that transfers and this thread tell each other, one of each.
class Words {
 public:
  explicit Words(int64_t count)
      : words_(static_cast<kernels::LinkWords*>(
            gpu().allocate_host(count * static_cast<int64_t>(sizeof(kernels::LinkWords))))) {
    REQUIRE(words_);
    std::memset(static_cast<void*>(words_), 0, static_cast<size_t>(count) * sizeof *words_);
  }
  Words(const Words&) = delete;
  ~Words() { gpu().release_host(words_); }
  kernels::LinkTurn turn(int64_t i) const { return {&words_[i], 1, 1}; }

  bool has_begun(int64_t i) const { return std::atomic_ref(words_[i].begun).load() == 1; }
  int64_t began_ns(int64_t i) const { return words_[i].began_ns; }
  void let_end(int64_t i) const { std::atomic_ref(words_[i].over).store(1); }

 private:
  kernels::LinkWords* const words_;
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
      // An odd place to begin and an end that is not whole words.
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
  const Words words(1);
  bool begun = false;
  std::thread host([&] {
    const auto limit = HostClock::now() + kTooLong;
    while (!(begun = words.has_begun(0)) && HostClock::now() < limit) std::this_thread::yield();
    words.let_end(0);
  });
  paced.give(stream, 100'000, 4, words.turn(0));
  stream.finish();
  host.join();
  CHECK(begun);
  CHECK(words.began_ns(0) > 0);
  CHECK((to.read() == std::vector<char>(static_cast<size_t>(bytes), 0x5b)));
}

TEST_CASE("two transfers are under way at once, and each ends soon after the host says so",
          "[time]") {
  const OwnStream one(true), two(true);
  const OwnEvent over_one, over_two;
  const DeviceArray<char> from(gpu(), 1 << 20), to(gpu(), 1 << 20);
  const Paced paced = {{{to.data(), from.data(), 1 << 20}}};
  const Words words(2);
  paced.give(one, 200'000, 4, words.turn(0));
  gpu().record(over_one, one);
  gpu().sleep(200'000, words.turn(1), two);
  gpu().record(over_two, two);
  const auto limit = HostClock::now() + kTooLong;
  while (!(words.has_begun(0) && words.has_begun(1)) && HostClock::now() < limit) {
  }
  const bool both = words.has_begun(0) && words.has_begun(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const bool held = !gpu().over(over_one) && !gpu().over(over_two);
  const auto let = [&](int64_t i, kernels::Event over) {
    const auto begin = HostClock::now();
    words.let_end(i);
    while (!gpu().over(over) && HostClock::now() < limit) {
    }
    return std::chrono::duration<double, std::micro>(HostClock::now() - begin).count();
  };
  const double us_one = let(0, over_one);
  const bool two_held = !gpu().over(over_two);
  const double us_two = let(1, over_two);
  CHECK(both);
  CHECK(held);
  CHECK(two_held);
  CHECK(us_one < 50);
  CHECK(us_two < 50);
}
