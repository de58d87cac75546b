#include "engine/network/link_clock.h"

#include <catch2/catch.hpp>

namespace moe {
namespace {

/// One node; the links out are 0 to 3, those in 4 to 7, and all carry 10 bytes/ns.
Cluster four_devices() {
  Cluster cluster;
  cluster.devices_per_node = 4;
  cluster.intra.bytes_per_s = 10e9;
  return cluster;
}

constexpr Flow kShort{.bytes = 12}, kLong{.bytes = 1e6};

Stream stream(uint32_t out, uint32_t in, const Flow& flow) {
  return {.out = out, .in = in, .flows = {&flow, 1}};
}

TEST_CASE("a lower priority gets what a higher one leaves, and takes nothing from it") {
  const Fabric fabric(four_devices(), false);
  LinkClock clock(fabric, Share::kStrictPriority, 1, false);
  // Three flows into link 7 take 10/3 each, whatever the lower priority does; it gets 20/3.
  clock.add(0, 0, std::vector{stream(0, 6, kShort)});
  clock.add(1, 1, std::vector{stream(0, 7, kLong), stream(1, 7, kLong), stream(2, 7, kLong)});
  CHECK(clock.next_end_ns() == Approx(1.8));
  std::vector<FinishedFlow> ended;
  clock.advance(clock.next_end_ns(), ended);
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].owner == 0);
  CHECK(clock.next_end_ns() == Approx(3e5));
}

TEST_CASE("a link that two owners use keeps the efficiency's part of its rate while they do") {
  const Fabric fabric(four_devices(), false);
  LinkClock clock(fabric, Share::kPerFlow, 0.8, false);
  // Link 0 shares 8, so its flows get 4 each; link 7 has one owner and leaves 6 for the third flow.
  clock.add(0, 0, std::vector{stream(0, 6, kShort)});
  clock.add(1, 0, std::vector{stream(0, 7, kShort), stream(1, 7, kShort)});
  std::vector<FinishedFlow> ended;
  CHECK(clock.next_end_ns() == Approx(2));
  clock.advance(clock.next_end_ns(), ended);
  CHECK(ended.size() == 1);
  CHECK(clock.next_end_ns() == Approx(3));
  clock.advance(clock.next_end_ns(), ended);
  CHECK(ended.size() == 3);
  CHECK(clock.next_end_ns() > 1e300);
}

}  // namespace
}  // namespace moe
