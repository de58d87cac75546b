#include "engine/placement/ultraep.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "engine/placement/eplb.h"
#include "engine/placement/policy.h"
#include "engine/placement/quota.h"
#include "tests/placement/fixture.h"

namespace moe {
namespace {

ExpertCounts from_first_source(int64_t devices, const std::vector<int64_t>& of_expert) {
  ExpertCounts loads(devices, static_cast<int64_t>(of_expert.size()));
  std::copy(of_expert.begin(), of_expert.end(), loads.rows.begin());
  return loads;
}

TEST_CASE("ultraep: the heaviest device gives of its heaviest expert to those with most room") {
  // Mean 30. Device 0 (60 + 6) gives away 36 of expert 0: 24 to device 2, 12 to device 1.
  const ExpertCounts loads = from_first_source(3, {60, 6, 15, 3, 5, 1});
  const auto owners = test::owners_in_order(6, 3);
  const UltraEpPlan plan = plan_ultraep(loads, owners, 1, {.slack = 0});
  CHECK(plan.threshold == 30);
  CHECK(plan.copies == std::vector<Copied>{{0, 2, 24}, {0, 1, 12}});
  // With a third of the mean more, device 2 has room for all 26.
  const UltraEpPlan more = plan_ultraep(loads, owners, 1, {.slack = 1.0 / 3});
  CHECK(more.threshold == 40);
  CHECK(more.copies == std::vector<Copied>{{0, 2, 26}});
  CHECK(plan_ultraep(loads, owners, 0, {}).threshold == 66);
  CHECK(plan_ultraep(loads, owners, 0, {}).copies.empty());
}

TEST_CASE("ultraep: pieces below an even share are for the search that follows") {
  // Mean 16, 32 to give away to two devices with two slots each: 16 each, but an expert has 12. The
  // thresholds 16, 17 and 18 fail, and the search places 12 + 12, then 4 + 4.
  const ExpertCounts loads = from_first_source(3, {12, 12, 12, 12, 0, 0, 0, 0, 0, 0, 0, 0});
  const auto owners = test::owners_in_order(12, 3);
  const UltraEpPlan plan = plan_ultraep(loads, owners, 2, {.slack = 0});
  CHECK(plan.threshold == 16);
  CHECK(plan.copies == std::vector<Copied>{{0, 1, 12}, {1, 2, 12}, {2, 1, 4}, {2, 2, 4}});
  // With one slot each device takes one expert. No copy may get fewer than 13 tokens.
  CHECK(plan_ultraep(loads, owners, 1, {.slack = 0}).threshold == 24);
  CHECK(plan_ultraep(loads, owners, 2, {.slack = 0, .min_tokens = 13}).threshold == 48);
}

TEST_CASE("ultraep: plans keep slots and tokens, and the heaviest device never gets heavier") {
  const PlacementPolicy& policy = builtin_policy("ultraep");
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto devices = static_cast<int64_t>(1 + seed % 7), experts = devices * 2;
    const auto shadows = std::min<int64_t>(experts, static_cast<int64_t>(1 + seed % 3));
    const ExpertCounts loads = test::skewed_loads(devices, experts, seed);
    const Placement now({.experts = experts,
                         .devices = devices,
                         .residents = 2,
                         .shadows = shadows,
                         .weighted = true});
    const UltraEpPlan plan =
        plan_ultraep(loads, test::owners_in_order(experts, devices), shadows, {});
    const Placement next = policy.place({.loads = loads, .now = now}, resolved(policy, {}));
    next.check();
    const auto before = device_loads(now, loads).computed;
    const auto after = device_loads(next, loads).computed;
    CAPTURE(seed);
    CHECK(std::accumulate(after.begin(), after.end(), int64_t{0}) == loads.total());
    const int64_t most = *std::max_element(after.begin(), after.end());
    CHECK(most <= plan.threshold);
    CHECK(plan.threshold <= *std::max_element(before.begin(), before.end()));
    CHECK(most * devices >= loads.total());
  }
}

TEST_CASE("quotas are met to the token, and tokens at home stay there") {
  Placement p({.experts = 3, .devices = 3, .residents = 1, .shadows = 1, .weighted = true});
  p.add_shadow(0, 1);
  p.add_shadow(0, 2);
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 7, loads.at(1, 0) = 3, loads.at(2, 0) = 11;
  share_by_quota(p, 0, loads, {{0, 10}, {1, 5}, {2, 6}});
  p.check();
  const DeviceLoads shared = device_loads(p, loads);
  CHECK(shared.computed == std::vector<int64_t>{10, 5, 6});
  CHECK(shared.received == std::vector<int64_t>{3, 2, 0});  // from source 2, which has 5 too many
  for (int64_t& rows : loads.rows) rows *= int64_t{1} << 30;
  const int64_t unit = int64_t{1} << 30;
  share_by_quota(p, 0, loads, {{0, 10 * unit}, {1, 5 * unit}, {2, 6 * unit}});
  for (size_t d = 0; d < 3; ++d) {
    const auto wanted = static_cast<double>(std::vector<int64_t>{10, 5, 6}[d] * unit);
    CHECK(static_cast<double>(device_loads(p, loads).computed[d]) == Approx(wanted).epsilon(1e-5));
  }
}

TEST_CASE("eplb by nodes packs groups into nodes, and replicas stay in their node") {
  // Groups of two experts: 50, 12, 6, 4; nodes of two devices get the groups {0, 3} and {1, 2}.
  const std::vector<int64_t> inputs = {40, 10, 6, 6, 5, 1, 2, 2};
  const auto held = pack_nodes(inputs, {.devices = 4, .room = 3, .nodes = 2, .groups = 4});
  // Node 0 has experts 40, 10, 2, 2, of which the first two are on both devices; node 1 has 6, 6,
  // 5, 1, also with the first two twice, and 5 is packed first.
  CHECK(held == std::vector<std::vector<int64_t>>{{0, 1, 6}, {0, 1, 7}, {4, 2, 3}, {2, 3, 5}});
}

}  // namespace
}  // namespace moe
