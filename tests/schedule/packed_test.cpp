#include "engine/schedule/packed.h"

#include <catch2/catch.hpp>

#include "engine/base/rng.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

/// All fields filled, whether they make sense together or not.
Schedule random_schedule(uint64_t seed) {
  Rng rng(seed);
  const auto op = [&] { return OpId(rng.below(40)); };
  const auto text = [&] { return std::string(static_cast<size_t>(rng.below(20)), 'x'); };
  Schedule s;
  for (int64_t l = 0; l < 3; ++l) {
    const LaneKind kind = l == 0 ? LaneKind::kCompute : LaneKind::kComm;
    s.lanes.push_back(
        {text(), kind, rng.below(2) == 0 ? Pick::kOrder : Pick::kPriority, nullptr, text()});
  }
  for (int64_t i = 0; i < 40; ++i) {
    s.lane_of.push_back(LaneId(rng.below(3)));
    s.order_edges.push_back({op(), op(), text(), text()});
    s.priority.push_back(rng.below(9) - 4);
    s.chunk_bytes.push_back(rng.below(1000));
    s.chunk_stage.push_back(text());
    s.settings.push_back({op(), Setting::kChunk, text()});
  }
  for (int64_t i = rng.below(3); i > 0; --i) s.holds.push_back({op(), op(), text()});
  for (int64_t i = rng.below(2); i > 0; --i) {
    s.exclusive.push_back({{LaneId(1), LaneId(2)}, text()});
  }
  s.log.push_back({text(), text(), text()});
  return s;
}

std::string packed(const Schedule& schedule) {
  Packer packer;
  put_schedule(schedule, packer);
  return packer.take();
}

TEST_CASE("a schedule comes out of its bytes as it went in") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Schedule in = random_schedule(seed);
    const std::string bytes = packed(in);
    Unpacker unpacker(bytes);
    const Schedule out = get_schedule(unpacker);
    CHECK(packed(out) == bytes);
    CHECK(out.lane_of == in.lane_of);
    CHECK(out.priority == in.priority);
    CHECK(out.chunk_bytes == in.chunk_bytes);
    CHECK(out.chunk_stage == in.chunk_stage);
    REQUIRE(out.order_edges.size() == in.order_edges.size());
    CHECK(out.order_edges[7].to == in.order_edges[7].to);
    CHECK(out.order_edges[7].why == in.order_edges[7].why);
    REQUIRE(out.lanes.size() == 3);
    CHECK(out.lanes[2].name == in.lanes[2].name);
    CHECK(out.lanes[2].pick == in.lanes[2].pick);
    CHECK(out.holds.size() == in.holds.size());
    CHECK(out.exclusive.size() == in.exclusive.size());
    CHECK(out.log[0].why == in.log[0].why);
    CHECK(out.settings[3].stage == in.settings[3].stage);
  }
}

TEST_CASE("the function that a lane picks by stays, and the lane says so where it is called") {
  Schedule schedule = random_schedule(1);
  schedule.lanes[1] = {"comm", LaneKind::kComm, Pick::kPolicy,
                       [](std::span<const OpId> ready) { return ready[0]; }, "mine"};
  const std::string bytes = packed(schedule);
  Unpacker unpacker(bytes);
  const Lane lane = get_schedule(unpacker).lanes[1];
  CHECK(lane.pick == Pick::kPolicy);
  const std::vector<OpId> ready = {OpId(0)};
  CHECK_THROWS_WITH(lane.choose(ready),
                    "lane comm (stage mine): its pick function only exists in the process that "
                    "made the plan");
}

}  // namespace
}  // namespace moe
