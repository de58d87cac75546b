// Copies that are paced like a network's transfer: the bytes, and the time that they take.
#include <cstring>

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
  void give(kernels::Stream stream, int64_t duration_ns, int32_t blocks) const {
    gpu().paced_copies(copies.data(), static_cast<int64_t>(copies.size()), duration_ns, blocks,
                       stream);
  }
  std::vector<kernels::Copy> copies;
};

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
