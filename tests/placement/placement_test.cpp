#include "engine/placement/placement.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

ExpertCounts random_loads(int64_t devices, int64_t experts, uint64_t seed) {
  Rng rng(seed);
  ExpertCounts loads(devices, experts);
  for (int64_t& rows : loads.rows) rows = static_cast<int64_t>(rng.below(40));
  return loads;
}

/// Any number of legal edits; those that are refused change nothing.
Placement random_placement(const PlacementBounds& bounds, uint64_t seed) {
  Rng rng(seed);
  Placement p(bounds);
  const auto expert = [&] { return static_cast<int64_t>(rng.below(bounds.experts)); };
  const auto device = [&] { return static_cast<int64_t>(rng.below(bounds.devices)); };
  for (int i = 0; i < 40; ++i) {
    const Placement before = p;
    try {
      switch (rng.below(6)) {
        case 0:
          p.add_shadow(expert(), device());
          break;
        case 1:
          p.add_resident(expert(), device());
          break;
        case 2:
          p.move_owner(expert(), device());
          break;
        case 3:
          p.swap_owners(expert(), expert());
          break;
        case 4:
          p.remove(expert(), device());
          break;
        default:
          p.set_sharing(expert(), static_cast<Sharing>(rng.below(2)));
          break;
      }
    } catch (const UserError&) {
      REQUIRE(p == before);
    }
    p.check();
  }
  return p;
}

TEST_CASE("experts lie in order, as many on each device, until something moves") {
  const Placement p({.experts = 5, .devices = 2, .residents = 3});
  CHECK(p.holders(2) == std::vector<int64_t>{0});
  CHECK(p.owner(3) == 1);
  CHECK(p.slot_of(4, 1) == 1);
  CHECK(p.free_residents(1) == 1);
}

TEST_CASE("legal edits in any order keep the invariants, and refused ones change nothing") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto devices = static_cast<int64_t>(1 + seed % 5), experts = devices + int64_t(seed % 3);
    const PlacementBounds bounds{
        .experts = experts,
        .devices = devices,
        .residents = std::min(experts, (experts + devices - 1) / devices + int64_t(seed % 2)),
        .shadows = std::min(experts, int64_t(seed % 4))};
    const Placement p = random_placement(bounds, seed);
    CHECK(Placement::decode(bounds, p.codes()) == p);
  }
}

TEST_CASE("every row of every source goes to one holder of its expert") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const PlacementBounds bounds{.experts = 6, .devices = 4, .residents = 3, .shadows = 2};
    const Placement p = random_placement(bounds, seed);
    const ExpertCounts loads = random_loads(4, 6, seed + 1000);
    std::vector<int64_t> expected(static_cast<size_t>(4 * 5 * 4));
    for (int64_t e = 0; e < 6; ++e) {
      for (int64_t s = 0; s < 4; ++s) {
        int64_t next = 0;
        for (const RowRange& range : share_rows(p, e, s, loads.at(s, e))) {
          CHECK(range.begin == next);
          CHECK(p.at(range.device, range.slot) == e);
          next = range.end;
          expected[static_cast<size_t>((range.device * 5 + range.slot) * 4 + s)] +=
              range.end - range.begin;
        }
        CHECK(next == loads.at(s, e));
      }
    }
    CHECK(rows_by_slot(p, loads) == expected);
  }
}

TEST_CASE("local sharing keeps a holder's tokens at home and sends the others' to the owner") {
  Placement p({.experts = 3, .devices = 3, .residents = 1, .shadows = 1});
  p.add_shadow(0, 1);
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 2, loads.at(1, 0) = 2, loads.at(2, 0) = 1;
  const DeviceLoads now = device_loads(p, loads);
  CHECK(now.computed == std::vector<int64_t>{3, 2, 0});
  CHECK(now.received == std::vector<int64_t>{1, 0, 0});
}

TEST_CASE("even sharing gives every holder as many rows, from another first holder a source") {
  Placement p({.experts = 2, .devices = 2, .residents = 2});
  p.add_resident(0, 1);
  p.set_sharing(0, Sharing::kEven);
  ExpertCounts loads(2, 2);
  loads.at(0, 0) = 1, loads.at(1, 0) = 1;
  CHECK(device_loads(p, loads).computed == std::vector<int64_t>{1, 1});
  loads.at(0, 0) = 10, loads.at(1, 0) = 20;
  CHECK(device_loads(p, loads).computed == std::vector<int64_t>{15, 15});
}

TEST_CASE("weights share rows as they say") {
  Placement p({.experts = 2, .devices = 2, .residents = 2, .weighted = true});
  p.add_resident(0, 1);
  p.set_weight(0, 0, 0, 3);
  p.set_weight(0, 1, p.slot_of(0, 1), 1);
  p.set_weight(1, 1, p.slot_of(0, 1), 1);
  p.set_sharing(0, Sharing::kWeighted);
  p.check();
  ExpertCounts loads(2, 2);
  loads.at(0, 0) = 8, loads.at(1, 0) = 5;
  CHECK(device_loads(p, loads).computed == std::vector<int64_t>{6, 7});
}

TEST_CASE("moves say what travels from one placement to the next") {
  const PlacementBounds bounds{.experts = 4, .devices = 2, .residents = 3, .shadows = 1};
  const Placement now(bounds);
  Placement next = now;
  next.move_owner(0, 1);
  next.add_resident(3, 0);
  next.add_shadow(1, 1);
  CHECK(resident_moves(now, next) == std::vector<Move>{{3, 1, 0, 0}, {0, 0, 1, 2}});
  CHECK(shadow_moves(next) == std::vector<Move>{{1, 0, 1, 3}});
}

TEST_CASE("what does not fit is refused by name") {
  Placement p({.experts = 2, .devices = 2, .residents = 1, .shadows = 1});
  CHECK_THROWS_WITH(p.move_owner(0, 1), Catch::Contains("no room to move expert 0 to device 1"));
  CHECK_THROWS_WITH(p.remove(0, 0), Catch::Contains("device 0 owns expert 0"));
  CHECK_THROWS_WITH(p.add_shadow(0, 0),
                    Catch::Contains("device 0 cannot get a shadow of expert 0"));
  CHECK_THROWS_WITH(p.add_shadow(2, 0), Catch::Contains("expert 2, allowed: 0 to 1"));
  CHECK_THROWS_WITH(p.set_sharing(0, Sharing::kWeighted),
                    Catch::Contains("this plan has none (weighted = false)"));
  std::vector<int32_t> codes(p.codes().begin(), p.codes().end());
  codes[2] = 1;  // device 0 holds expert 1, and expert 0 is nowhere
  CHECK_THROWS_WITH(Placement::decode(p.bounds(), codes), Catch::Contains("expert 0 is lost"));
  CHECK_THROWS_WITH(Placement({.experts = 4, .devices = 2, .residents = 1}),
                    Catch::Contains("placement.residents = 1"));
}

}  // namespace
}  // namespace moe
