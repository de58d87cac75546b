#include "engine/placement/prophet.h"

#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "tests/placement/fixture.h"

namespace moe {
namespace {

constexpr auto kAuto = ProphetOptions::kAuto;

// Copies that cost next to nothing.
const PlacementRates kCheap{
    .input_bytes = 1, .expert_bytes = 1e-6, .a2a_bytes_per_s = 1, .inputs_per_s = 1};

Placement placed(const ProphetPlan& plan, int64_t experts, int64_t devices) {
  Placement p({.experts = experts,
               .devices = devices,
               .residents = (experts + devices - 1) / devices,
               .shadows = experts});
  add_copies(plan.selected, p);
  p.check();
  return p;
}

// The paper's search as it is printed, for one expert per device: every pass counts anew.
ProphetPlan printed_search(const ExpertCounts& loads, const PlacementRates& rates, double alpha,
                           int64_t n, TimeEquation equation) {
  const int64_t devices = loads.sources;
  std::vector<std::vector<bool>> bottom(static_cast<size_t>(devices));  // of a selected expert
  const auto count = [&] {
    DeviceLoads now{std::vector<int64_t>(static_cast<size_t>(devices)), {}};
    now.received = now.computed;
    for (int64_t e = 0; e < devices; ++e) {
      for (int64_t d = 0; d < devices; ++d) {
        const auto& b = bottom[static_cast<size_t>(e)];
        const bool stays = d == e || (!b.empty() && !b[static_cast<size_t>(d)]);
        now.computed[static_cast<size_t>(stays ? d : e)] += loads.at(d, e);
        if (!stays) now.received[static_cast<size_t>(e)] += loads.at(d, e);
      }
    }
    return now;
  };
  ProphetPlan plan;
  plan.loads = plan.loads_without = count();
  plan.time_s = plan.time_without_s = layer_s(equation, count(), 0, rates);
  std::vector<Selected> list;
  size_t cnt = 0;
  while (!is_balanced(count().computed, alpha)) {
    const std::vector<int64_t> h = count().computed;
    const int64_t i = std::max_element(h.begin(), h.end()) - h.begin();
    if (!bottom[static_cast<size_t>(i)].empty()) break;
    std::vector<int64_t> others;
    for (int64_t d = 0; d < devices; ++d) {
      if (d != i) others.push_back(d);
    }
    std::stable_sort(others.begin(), others.end(),
                     [&](int64_t a, int64_t b) { return loads.at(a, i) < loads.at(b, i); });
    auto& b = bottom[static_cast<size_t>(i)];
    b.assign(static_cast<size_t>(devices), false);
    for (int64_t j = 0; j < n; ++j) b[static_cast<size_t>(others[static_cast<size_t>(j)])] = true;
    Selected selected{i, {others.begin() + n, others.end()}};
    std::sort(selected.devices.begin(), selected.devices.end());
    list.push_back(selected);
    const int64_t s = static_cast<int64_t>(list.size());
    const double time_s = layer_s(equation, count(), num_copies(s, n, devices), rates);
    if (time_s < plan.time_s) {
      plan.time_s = time_s, cnt = list.size(), plan.loads = count();
    }
  }
  plan.selected.assign(list.begin(), list.begin() + static_cast<int64_t>(cnt));
  return plan;
}

TEST_CASE("with one expert per device the search is the printed one") {
  int with_copies = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const auto devices = static_cast<int64_t>(1 + seed % 9);
    const ExpertCounts loads = test::skewed_loads(devices, devices, seed);
    const PlacementRates rates = test::random_rates(seed);
    const ProphetOptions how{
        .alpha = 0.25 * static_cast<double>(seed % 5),
        .n = static_cast<int64_t>(seed / 9) % devices,
        .equation = seed % 2 == 0 ? TimeEquation::kBlocking : TimeEquation::kHidden};
    const ProphetPlan ours =
        plan_prophet(loads, test::owners_in_order(devices, devices), rates, how);
    const ProphetPlan printed = printed_search(loads, rates, how.alpha, how.n, how.equation);
    REQUIRE(ours.selected == printed.selected);
    CHECK(ours.time_s == printed.time_s);
    CHECK(ours.loads.computed == printed.loads.computed);
    CHECK(ours.loads.received == printed.loads.received);
    with_copies += ours.selected.empty() ? 0 : 1;
  }
  CHECK(with_copies > 150);
}

TEST_CASE("a plan is never slower than none, and its counts are those of its placement") {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const auto devices = static_cast<int64_t>(1 + seed % 8),
               experts = devices * static_cast<int64_t>(1 + seed % 3 / 2);
    const ExpertCounts loads = test::skewed_loads(devices, experts, seed);
    const PlacementRates rates = test::scattering_rates(seed);
    const ProphetOptions how{
        .alpha = 0.5 * static_cast<double>(seed % 4),
        .n = seed % 5 == 0   ? devices - 1
             : seed % 5 == 1 ? 0
                             : kAuto,
        .equation = seed % 2 == 0 ? TimeEquation::kBlocking : TimeEquation::kHidden};
    const auto owners = test::owners_in_order(experts, devices);
    const ProphetPlan plan = plan_prophet(loads, owners, rates, how);
    REQUIRE(plan.time_s <= plan.time_without_s);
    const Placement placement = placed(plan, experts, devices);
    const DeviceLoads counted = device_loads(placement, loads);
    REQUIRE(plan.loads.computed == counted.computed);
    REQUIRE(plan.loads.received == counted.received);
    CHECK(placement_s(how.equation, placement, loads, rates) == Approx(plan.time_s));
    CHECK(plan_prophet(loads, owners, rates, how).selected == plan.selected);
  }
}

TEST_CASE("the best of all sets of copies is at most as slow as the greedy one, that as none") {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const int64_t devices = seed % 3 == 0 ? 4 : 3;
    const ExpertCounts loads = test::skewed_loads(devices, devices, seed);
    const PlacementRates rates = test::scattering_rates(seed);
    const auto equation = seed % 2 == 0 ? TimeEquation::kBlocking : TimeEquation::kHidden;
    const auto owners = test::owners_in_order(devices, devices);
    const double best = test::exhaustive_s(loads, owners, rates, equation);
    for (const int64_t n : {kAuto, int64_t{0}, int64_t{1}}) {
      const ProphetPlan plan =
          plan_prophet(loads, owners, rates, {.alpha = 0.1, .n = n, .equation = equation});
      CHECK(best <= plan.time_s * (1 + 1e-12));
      CHECK(plan.time_s <= plan.time_without_s);
    }
  }
}

// Figure 6: the experts receive 5, 2 and 2 of 9 inputs, and each device ends with 3. Which device
// has which input is only drawn there; this is one way.
TEST_CASE("figure 6: devices end even, and none gets an expert that it has no input for") {
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 3, loads.at(1, 0) = 2;
  loads.at(1, 1) = 1, loads.at(2, 1) = 1;
  loads.at(2, 2) = 2;
  for (const int64_t n : {kAuto, int64_t{1}}) {
    const ProphetPlan plan =
        plan_prophet(loads, test::owners_in_order(3, 3), kCheap,
                     {.alpha = 0.5, .n = n, .equation = TimeEquation::kHidden});
    CHECK(plan.loads_without.computed == std::vector<int64_t>{5, 2, 2});
    CHECK(plan.loads.computed == std::vector<int64_t>{3, 3, 3});
    CHECK(plan.loads.received == std::vector<int64_t>{0, 0, 0});
    CHECK(plan.selected == std::vector<Selected>{{0, {1}}, {1, {2}}});
  }
}

TEST_CASE("the prefix of the search with the least time is kept, not the last one tried") {
  // The second copy costs more than it gains: 12, 6, 0 -> 6, 9, 3 -> 6, 8, 4
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 6, loads.at(1, 0) = 3, loads.at(2, 0) = 3;
  loads.at(1, 1) = 5, loads.at(2, 1) = 1;
  PlacementRates rates = kCheap;
  rates.expert_bytes = 10;
  const auto plan = plan_prophet(loads, test::owners_in_order(3, 3), rates,
                                 {.alpha = 0, .n = 0, .equation = TimeEquation::kBlocking});
  CHECK(plan.selected == std::vector<Selected>{{0, {1, 2}}});
  CHECK(plan.time_s == 4 * 1 + 3 * 9 + 2 * 10);
  CHECK(plan.time_without_s == 4 * 6 + 3 * 12);
}

// As two cases above, but both owners scatter at the same time and nothing else takes time in a
// copy, so that the second expert costs nothing more.
TEST_CASE("where owners scatter at the same time the planner copies more experts") {
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 6, loads.at(1, 0) = 3, loads.at(2, 0) = 3;
  loads.at(1, 1) = 5, loads.at(2, 1) = 1;
  PlacementRates rates = kCheap;
  rates.expert_bytes = 10, rates.scatter_share = 1;
  const ProphetOptions how{.alpha = 0, .n = 0, .equation = TimeEquation::kBlocking};
  const auto plan = plan_prophet(loads, test::owners_in_order(3, 3), rates, how);
  CHECK(plan.selected == std::vector<Selected>{{0, {1, 2}}, {1, {0, 2}}});
  CHECK(plan.time_s == 4 * 0 + 3 * 8 + 2 * 10);
  rates.scatter_group = 3;
  CHECK(plan_prophet(loads, test::owners_in_order(3, 3), rates, how).selected.size() == 1);
}

// 12 and 0 inputs, 3 of which would move: 9 s less of experts. The copies take 40 s each way, so it
// pays where at least 31 s of the block before hide them forward, and twice as much backward.
TEST_CASE("the planner hides copies behind the experts of the block before") {
  ExpertCounts loads(2, 2);
  loads.at(0, 0) = 9, loads.at(1, 0) = 3;
  PlacementRates rates = kCheap;
  rates.expert_bytes = 40;
  const auto num_copied = [&](std::optional<double> experts_before_s) {
    return plan_prophet(loads, test::owners_in_order(2, 2), rates,
                        {.alpha = 0, .experts_before_s = experts_before_s})
        .selected.size();
  };
  rates.a2a_bytes_per_s = 1e9, rates.copy_bytes_per_s = 1;
  CHECK(num_copied(0) == 0);
  CHECK(num_copied(30) == 0);
  CHECK(num_copied(31.5) == 1);
  CHECK(num_copied(40) == 1);
  CHECK(num_copied(std::nullopt) == 0);  // its own 12 s
}

TEST_CASE("ties go to the lower device, the lower expert and the lower device left out") {
  ExpertCounts loads(4, 8);  // two experts per device; the first four take as much from everyone
  for (int64_t source = 0; source < 4; ++source) {
    for (int64_t e = 0; e < 4; ++e) loads.at(source, e) = 20;
  }
  const auto plan = plan_prophet(loads, test::owners_in_order(8, 4), kCheap, {.alpha = 0, .n = 2});
  CHECK(plan.selected == std::vector<Selected>{{0, {3}}, {2, {3}}, {1, {3}}, {3, {3}}});
}

TEST_CASE("of a device with several experts the heaviest goes first, and others may follow") {
  ExpertCounts loads(2, 4);
  loads.at(1, 0) = 10, loads.at(1, 1) = 31;
  loads.at(0, 0) = 20;
  const auto plan = plan_prophet(loads, test::owners_in_order(4, 2), kCheap, {.alpha = 0});
  CHECK(plan.selected == std::vector<Selected>{{1, {1}}});
  loads.at(0, 0) = 60;
  const auto both = plan_prophet(loads, test::owners_in_order(4, 2), kCheap, {.alpha = 0});
  CHECK(both.selected == std::vector<Selected>{{0, {1}}, {1, {1}}});
}

TEST_CASE("loads without choice leave nothing to plan") {
  const ProphetOptions strict{.alpha = 0};
  CHECK(plan_prophet(ExpertCounts(4, 4), test::owners_in_order(4, 4), kCheap, strict)
            .selected.empty());
  ExpertCounts one(1, 3);
  one.at(0, 1) = 7;
  CHECK(plan_prophet(one, test::owners_in_order(3, 1), kCheap, strict).selected.empty());
  ExpertCounts home(2, 2);  // everything is where it belongs, uneven as it is
  home.at(0, 0) = 100;
  CHECK(plan_prophet(home, test::owners_in_order(2, 2), kCheap, strict).selected.empty());
}

TEST_CASE("one expert that takes all is copied to everyone with inputs for it") {
  ExpertCounts loads(4, 4);
  for (int64_t d = 0; d < 3; ++d) loads.at(d, 2) = 50;
  const auto plan = plan_prophet(loads, test::owners_in_order(4, 4), kCheap, {.alpha = 1});
  CHECK(plan.selected == std::vector<Selected>{{2, {0, 1}}});
  CHECK(plan.loads.computed == std::vector<int64_t>{50, 50, 50, 0});
}

TEST_CASE("no more experts are selected than there is room for") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ExpertCounts loads = test::skewed_loads(8, 8, seed);
    double time_s = std::numeric_limits<double>::infinity();
    for (int64_t most = 0; most <= 8; ++most) {
      const auto plan =
          plan_prophet(loads, test::owners_in_order(8, 8), kCheap, {.alpha = 0.01, .most = most});
      CHECK(static_cast<int64_t>(plan.selected.size()) <= most);
      CHECK(plan.time_s <= time_s);
      time_s = plan.time_s;
    }
  }
}

TEST_CASE("options that cannot be are refused by name") {
  const ExpertCounts loads(3, 3);
  const auto owners = test::owners_in_order(3, 3);
  CHECK_THROWS_WITH(plan_prophet(loads, owners, kCheap, {.n = 3}),
                    Catch::Contains("prophet.n = 3, allowed: 0 to 2, or -1 (automatic)"));
  CHECK_THROWS_WITH(plan_prophet(loads, owners, kCheap, {.alpha = -1}),
                    Catch::Contains("prophet.alpha = -1"));
  CHECK_THROWS_WITH(plan_prophet(loads, std::vector<int64_t>{0, 1, 3}, kCheap, {}),
                    Catch::Contains("the owner of an expert is device 3, allowed: 0 to 2"));
}

}  // namespace
}  // namespace moe
