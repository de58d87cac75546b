#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "engine/placement/eplb.h"
#include "engine/placement/policy.h"
#include "engine/placement/prophet.h"
#include "engine/placement/shadowing.h"
#include "tests/base/message_of.h"
#include "tests/placement/fixture.h"

namespace moe {
namespace {

Placement run(const char* name, const ExpertCounts& loads, const Placement& now,
              const PolicyOptions& options = {}, const PlacementRates& rates = {}) {
  const PlacementPolicy& policy = builtin_policy(name);
  return policy.place({.loads = loads, .now = now, .rates = rates}, resolved(policy, options));
}

int64_t heaviest(const Placement& placement, const ExpertCounts& loads) {
  const auto computed = device_loads(placement, loads).computed;
  return *std::max_element(computed.begin(), computed.end());
}

std::string message_of(const char* name, const Placement& now, const PolicyOptions& options = {},
                       const PlacementRates& rates = {}) {
  return test::message_of<UserError>([&] {
    const PlacementBounds& b = now.bounds();
    run(name, test::skewed_loads(b.devices, b.experts, 1), now, options, rates);
  });
}

TEST_CASE("every policy gives a legal placement, the same one each time, whatever the loads") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto devices = static_cast<int64_t>(1 + seed % 6),
               experts = devices * (1 + static_cast<int64_t>(seed % 3));
    PlacementBounds bounds{
        .experts = experts,
        .devices = devices,
        .residents = std::min(experts, experts / devices + static_cast<int64_t>(seed % 2)),
        .shadows = std::min<int64_t>(experts, 3)};
    const ExpertCounts loads = seed % 10 == 0 ? ExpertCounts(devices, experts)
                                              : test::skewed_loads(devices, experts, seed);
    const PlacementRates rates = test::random_rates(seed);
    for (const PlacementPolicy& policy : builtin_policies()) {
      const PolicyOptions options = resolved(
          policy, policy.name == std::string("top_k") ? PolicyOptions{{"k", 1}} : PolicyOptions{});
      bounds.weighted = policy.defaults.weighted;
      Placement now(bounds);
      for (int step = 0; step < 3; ++step) {  // on from what the policy itself left
        const PlaceInput input{.step = step, .loads = loads, .now = now, .rates = rates};
        const Placement next = policy.place(input, options);
        INFO(policy.name << ", seed " << seed);
        next.check();
        CHECK(policy.place(input, options) == next);
        now = next;
      }
      // Loads that stay leave the third placement as the second was.
      CHECK(policy.place({.loads = loads, .now = now, .rates = rates}, options) == now);
    }
  }
}

TEST_CASE("prophet sends the q-th selected expert to shadow slot q of each of its devices") {
  const ExpertCounts loads = test::skewed_loads(8, 8, 3);
  PlacementRates rates = test::random_rates(3);
  rates.expert_bytes = 1;
  const Placement now({.experts = 8, .devices = 8, .residents = 1, .shadows = 4});
  const Placement next = run("prophet", loads, now, {{"alpha", 0.1}}, rates);
  const ProphetPlan plan =
      plan_prophet(loads, test::owners_in_order(8, 8), rates, {.alpha = 0.1, .most = 4});
  REQUIRE(plan.selected.size() > 1);
  for (size_t q = 0; q < plan.selected.size(); ++q) {
    for (const int64_t d : plan.selected[q].devices) {
      CHECK(next.at(d, 1 + static_cast<int64_t>(q)) == plan.selected[q].expert);
    }
  }
}

TEST_CASE("shadowing goes on while the next expert's load saves more than a copy costs") {
  // Per input 3 * 1 + 4 * 0.25 = 4 s. 40 -> 80 + 50 = 130; 130 -> 10 * 4 + 100 = 140: stop.
  const ShadowingCosts costs{.compute_s = 1, .send_s = 0.25, .copy_s = 50};
  CHECK(choose_shadowed({10, 20, 40, 5}, costs, 4) == std::vector<int64_t>{2});
  CHECK(choose_shadowed({10, 20, 40, 5}, {1, 0.25, 10}, 4) == std::vector<int64_t>{2, 1, 0});
  CHECK(choose_shadowed({10, 20, 40, 5}, {1, 0.25, 10}, 2) == std::vector<int64_t>{2, 1});
  CHECK(choose_shadowed({10, 20, 40, 5}, {1, 0.25, 1000}, 4).empty());
  CHECK(choose_shadowed({7}, {1, 1, 0}, 4).empty());
}

TEST_CASE("shadowing counts with its published constants only where a rate is missing") {
  // d = 2048: 4 * 2 d^2 / 11.5e12 + 4 * 4 d / 6.25e9 s an input against 16 d^2 / 6.25e9 s a copy:
  // (3 * 2.918 + 4 * 1.311) us = 14 us against 10.7 ms, or 767 inputs.
  const Placement now({.experts = 2, .devices = 2, .residents = 1, .shadows = 1});
  ExpertCounts loads(2, 2);
  for (const auto& [more, copied] : {std::pair{760, false}, std::pair{775, true}}) {
    loads.at(1, 0) = 1000 + more, loads.at(0, 1) = 1000;
    CHECK(run("fastermoe_shadowing", loads, now).holds(1, 0) == copied);
  }
  const PlacementRates dear{.input_bytes = 1,
                            .expert_bytes = 1e9,
                            .a2a_bytes_per_s = 1e6,
                            .copy_bytes_per_s = 1e6,
                            .inputs_per_s = 1e6};
  CHECK_FALSE(run("fastermoe_shadowing", loads, now, {}, dear).holds(1, 0));
}

TEST_CASE("top_k copies the heaviest experts to all devices") {
  const Placement now({.experts = 4, .devices = 4, .residents = 1, .shadows = 3});
  ExpertCounts loads(4, 4);
  loads.at(0, 1) = 5, loads.at(1, 3) = 9, loads.at(0, 2) = 5;
  const Placement next = run("top_k", loads, now, {{"k", 2}});
  CHECK(next.holders(3).size() == 4);
  CHECK(next.holders(1).size() == 4);  // before 2, which has as many
  CHECK(next.holders(2).size() == 1);
  CHECK(next.at(0, 1) == 3);
  CHECK(next.at(0, 2) == 1);
}

TEST_CASE("residents are given one at a time to the expert with the most inputs a resident") {
  CHECK(replicate({90, 30, 20, 10}, 8, 4) == std::vector<int64_t>{4, 2, 1, 1});
  CHECK(replicate({90, 30, 20, 10}, 8, 2) == std::vector<int64_t>{2, 2, 2, 2});
  CHECK(replicate({0, 0}, 4, 2) == std::vector<int64_t>{1, 1});
}

TEST_CASE("packed groups hold every expert, none twice, and never more than there is room for") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const auto groups = 1 + rng.below(6), room = 1 + rng.below(4);
    std::vector<int64_t> inputs(static_cast<size_t>(1 + rng.below(groups * room)));
    for (int64_t& n : inputs) n = rng.below(50);
    const auto residents = replicate(inputs, groups * room, groups);
    std::vector<int64_t> seen(inputs.size());
    for (const std::vector<int64_t>& group : pack(inputs, residents, groups, room)) {
      CHECK(static_cast<int64_t>(group.size()) <= room);
      for (const int64_t e : group) ++seen[static_cast<size_t>(e)];
      for (const int64_t e : group) CHECK(std::count(group.begin(), group.end(), e) == 1);
    }
    for (size_t e = 0; e < seen.size(); ++e) CHECK((seen[e] >= 1 && seen[e] <= residents[e]));
  }
}

TEST_CASE("eplb evens the devices, and moves no expert to where it is") {
  const PlacementBounds bounds{.experts = 8, .devices = 4, .residents = 3};
  ExpertCounts loads(4, 8);
  for (int64_t s = 0; s < 4; ++s) {
    for (int64_t e = 0; e < 8; ++e) loads.at(s, e) = e == 0 ? 60 : 10;
  }
  const Placement now(bounds);  // 280, 80, 80, 80
  const Placement next = run("eplb", loads, now);
  CHECK(heaviest(next, loads) == 140);  // a quarter of expert 0 and two others
  for (const Move& move : resident_moves(now, next)) CHECK(move.from != move.to);
  CHECK(run("eplb", loads, next) == next);
}

TEST_CASE("eplb never makes the heaviest device heavier, and keeps what gains too little") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ExpertCounts loads = test::skewed_loads(4, 8, seed);
    const Placement now({.experts = 8, .devices = 4, .residents = 3});
    const Placement next = run("eplb", loads, now);
    CHECK((next == now || heaviest(next, loads) <= 0.95 * heaviest(now, loads)));
    CHECK(run("eplb", loads, now, {{"keep", 1}}) == now);
    for (int64_t d = 0; d < 4; ++d) {
      CHECK(run("eplb", loads, now, {{"slots", 2}}).free_residents(d) >= 1);
    }
  }
}

TEST_CASE("swaps even the devices and leave as many experts on each") {
  ExpertCounts loads(2, 4);
  loads.at(0, 0) = 10, loads.at(0, 1) = 20, loads.at(1, 2) = 3, loads.at(1, 3) = 7;
  const Placement now({.experts = 4, .devices = 2, .residents = 2});  // 30 and 10
  const Placement next = run("swap", loads, now);
  CHECK(heaviest(next, loads) == 23);  // 20 + 3
  CHECK(resident_moves(now, next).size() == 2);
  CHECK(run("swap", loads, now, {{"swaps", 1}}) == next);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const ExpertCounts more = test::skewed_loads(4, 12, seed);
    const Placement before({.experts = 12, .devices = 4, .residents = 3});
    const Placement after = run("swap", more, before, {{"keep", 0}});
    CHECK(heaviest(after, more) <= heaviest(before, more));
    CHECK(after.free_residents(0) == 0);
  }
}

TEST_CASE("a move is made only where it pays within the horizon") {
  ExpertCounts loads(2, 4);
  loads.at(0, 0) = 10, loads.at(0, 1) = 20, loads.at(1, 2) = 3, loads.at(1, 3) = 7;
  const Placement now({.experts = 4, .devices = 2, .residents = 2});
  const PlacementRates rates{.input_bytes = 0,
                             .expert_bytes = 20,
                             .state_bytes = 64,
                             .a2a_bytes_per_s = 1,
                             .inputs_per_s = 1};
  // 84 s to move, 3 * (30 - 23) = 21 s gained a step: even after 4 steps
  CHECK(run("swap", loads, now, {{"horizon", 3}}, rates) == now);
  CHECK_FALSE(run("swap", loads, now, {{"horizon", 4}}, rates) == now);
}

TEST_CASE("what a policy cannot work with is refused by name") {
  using Catch::Contains;
  const PlacementRates rates = test::random_rates(1);
  const Placement bare({.experts = 4, .devices = 4, .residents = 2});
  CHECK_THAT(message_of("prophet", bare, {}, rates), Contains("prophet: placement.shadows = 0"));
  CHECK_THAT(message_of("top_k", bare), Contains("top_k: placement.shadows = 0"));
  const Placement room({.experts = 4, .devices = 4, .residents = 2, .shadows = 2});
  CHECK_THAT(message_of("prophet", room),
             Contains("prophet.a2a_bytes_per_s = 0, allowed: a number"));
  CHECK_THAT(message_of("top_k", room, {{"k", 3}}), Contains("top_k.k = 3, allowed: 1 to 2"));
  CHECK_THAT(message_of("top_k", room, {{"k", 1.5}}), Contains("a whole number from 1"));
  CHECK_THAT(message_of("prophet", room, {{"alpa", 1}}, rates), Contains("Did you mean 'alpha'?"));
  CHECK_THAT(message_of("prophet", room, {{"alpha", -1}}, rates), Contains("prophet.alpha = -1"));
  CHECK_THAT(message_of("eplb", room, {{"slots", 3}}), Contains("eplb.slots = 3, allowed: 1 to 2"));
  CHECK_THAT(message_of("swap", room, {{"horizon", 5}}), Contains("swap.a2a_bytes_per_s = 0"));
  Placement twice = room;
  twice.add_resident(0, 1);
  CHECK_THAT(message_of("swap", twice),
             Contains("expert 0 has a resident on device 1 besides its owner 0"));
  CHECK_THROWS_WITH(builtin_policy("prophe"), Contains("Did you mean 'prophet'?"));
}

TEST_CASE("all residents set at once keep the slots of what stays, or nothing changes") {
  Placement p({.experts = 4, .devices = 2, .residents = 3});
  const Placement before = p;
  CHECK_THROWS_WITH(p.set_residents(std::vector<int64_t>{0, 0, 1, 1}, {{0, 1}, {2}}),
                    Catch::Contains("expert 3 is lost"));
  CHECK_THROWS_WITH(p.set_residents(std::vector<int64_t>{0, 0, 1, 1}, {{3, 2, 1, 0}, {2, 3}}),
                    Catch::Contains("no room for expert"));
  CHECK(p == before);
  p.set_residents(std::vector<int64_t>{1, 0, 1, 0}, {{1, 3}, {0, 2, 1}});
  CHECK(p.slot_of(1, 0) == 1);
  CHECK(p.slot_of(3, 0) == 0);
  CHECK(p.slot_of(2, 1) == 0);
  CHECK(p.owner(0) == 1);
}

}  // namespace
}  // namespace moe
