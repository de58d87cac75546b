// The memory in use over a step.
#include "engine/analysis/memory_track.h"

#include <catch2/catch.hpp>

#include "engine/replay/replay.h"
#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

TEST_CASE(
    "the memory in use stays in its plan, from the parameters before the step to them after") {
  for (const auto& stages : {std::vector<Stage>{}, std::vector<Stage>{stage("dw_schedule")}}) {
    const auto plan = make_plan(small_spec(stages));
    const Timeline timeline =
        replay(replay_input(plan->graph, plan->schedule, plan->orders, *plan->spec.cost));
    const std::vector<MemoryInUse> track = MemoryTrack(*plan, timeline).of(0);
    REQUIRE(track.size() > 10);
    CHECK(track.front().at == 0);
    CHECK(track.back().bytes == plan->memory.persistent_bytes);
    Bytes most = 0;
    for (size_t i = 0; i < track.size(); ++i) {
      if (i > 0) CHECK(track[i - 1].at < track[i].at);
      if (i > 0) CHECK(track[i - 1].bytes != track[i].bytes);
      most = std::max(most, track[i].bytes);
    }
    CHECK(most > plan->memory.persistent_bytes);
    CHECK(most <= plan->memory.persistent_bytes + plan->memory.arena_bytes);
  }
}

}  // namespace
}  // namespace moe::test
