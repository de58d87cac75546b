#include "engine/placement/performance_model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/placement/fixture.h"

namespace moe {
namespace {

// By hand: 4 devices, the greatest of H is 8 and of R is 6.
const DeviceLoads kLoads{{8, 4, 2, 2}, {6, 3, 0, 1}};
const PlacementRates kRates{.input_bytes = 10,
                            .expert_bytes = 100,
                            .state_bytes = 300,
                            .a2a_bytes_per_s = 20,
                            .copy_bytes_per_s = 50,
                            .inputs_per_s = 4};

TEST_CASE("equations 1 to 5 are the printed ones") {
  CHECK(a2a_s(kLoads, kRates) == Approx(3));  // 6 * 10 / 20
  CHECK(fec_s(kLoads, kRates) == Approx(2));  // 8 / 4
  CHECK(bec_s(kLoads, kRates) == Approx(4));
  const int64_t copies = num_copies(2, 1, 4);  // 2 experts, one device goes without
  CHECK(copies == 6);
  CHECK(trans_s(copies, 4, kRates) == Approx(2 * 3 * 100 / (4 * 50.0)));
  CHECK(agg_s(copies, 4, kRates) == Approx(3));
}

TEST_CASE("copies and all-to-alls share one rate where no rate of copies is given") {
  PlacementRates one = kRates;
  one.copy_bytes_per_s = 0;
  CHECK(trans_s(6, 4, one) == Approx(6 * 100 / (4 * 20.0)));
}

TEST_CASE("copies block in equation 6, and only what compute does not hide counts in 8") {
  CHECK(layer_s(TimeEquation::kBlocking, kLoads, 6, kRates) == Approx(4 * 3 + 3 * 2 + 3 + 3));
  // Trans 3 against FEC 2; Agg 3 against BEC 4
  CHECK(layer_s(TimeEquation::kHidden, kLoads, 6, kRates) == Approx(4 * 3 + 3 * 2 + 1));
  PlacementRates wide = kRates;
  wide.forward_other_s = 0.25;
  CHECK(layer_s(TimeEquation::kHidden, kLoads, 6, wide) == Approx(18 + 0.75));
  CHECK(layer_s(TimeEquation::kHidden, kLoads, 20, kRates) == Approx(18 + 8 + 6));
}

// Trans and Agg of 3 against FEC and BEC of the block before, which are 0.5 and 1, 2.75 and 5.5, or
// 0 and 0 where there is no block before. The layer's own experts, FEC 2, hide nothing.
TEST_CASE("in equation 8 the experts of the block before hide copies, not the layer's own") {
  const auto exposed = [&](double before_s, const PlacementRates& rates) {
    return layer_s(TimeEquation::kHidden, kLoads, 6, rates, before_s) - 18;
  };
  CHECK(exposed(0.5, kRates) == Approx(2.5 + 2));
  CHECK(exposed(2.75, kRates) == Approx(0.25 + 0));
  CHECK(exposed(0, kRates) == Approx(3 + 3));
  PlacementRates wide = kRates;
  wide.forward_other_s = 0.25, wide.backward_other_s = 1.5;
  CHECK(exposed(0.5, wide) == Approx(2.25 + 0.5));
  CHECK(layer_s(TimeEquation::kBlocking, kLoads, 6, kRates, 0.5) == Approx(18 + 6));
}

// Two experts have owner 0, with 4 and 3 copies, one has owner 1, with 4, and one owner 3, with 2:
// owner 0 is the busiest with 7. In groups of two, owners 0 and 1 have one NIC and together 11.
TEST_CASE("scatters of several owners go at the same time, those that share a NIC do not") {
  const auto weighted = [](double share, int64_t group) {
    PlacementRates rates = kRates;
    rates.scatter_share = share, rates.scatter_group = group;
    CopyCount count(4, rates);
    CHECK(count.weighted() == 0);
    for (const auto& [owner, copies] : {std::pair{0, 4}, {0, 3}, {1, 4}, {3, 2}}) {
      count.add(owner, copies);
    }
    return count.weighted();
  };
  CHECK(weighted(0, 1) == 13);  // the paper
  CHECK(weighted(1, 1) == 7);
  CHECK(weighted(0.5, 1) == 10);
  CHECK(weighted(0.5, 2) == 12);
  CHECK(weighted(0.5, 4) == 13);
}

TEST_CASE("further residents of an expert are no copies: its owner alone sends and receives") {
  Placement p({.experts = 4, .devices = 4, .residents = 2, .shadows = 2});
  p.add_resident(0, 1);
  CHECK(shadow_copies(p, kRates) == 0);
  p.add_shadow(0, 2);
  p.add_shadow(3, 0);
  p.add_shadow(3, 1);
  CHECK(shadow_copies(p, kRates) == 2 + 3);
  PlacementRates rates = kRates;
  rates.scatter_share = 0.25;
  CHECK(shadow_copies(p, rates) == 0.75 * 5 + 0.25 * 3);  // owners 0 and 3, the latter with more
}

TEST_CASE("balanced is a spread below alpha times the mean, and nothing at all is balanced") {
  const std::vector<int64_t> loads{5, 2, 2};  // spread 3, mean 3
  CHECK_FALSE(is_balanced(loads, 1));
  CHECK(is_balanced(loads, 1.01));
  CHECK(is_balanced(std::vector<int64_t>{0, 0}, 0));
  CHECK_FALSE(is_balanced(std::vector<int64_t>{3, 3}, 0));
}

TEST_CASE("the balance degree is the population's deviation, RB how much less it is afterwards") {
  const std::vector<int64_t> uneven{5, 2, 2}, less{4, 3, 2}, even{3, 3, 3};
  CHECK(balance_degree(uneven) == Approx(std::sqrt(2.0)));
  CHECK(balance_ratio(uneven, less) == Approx(std::sqrt(3.0)));
  CHECK(balance_ratio(uneven, even) == std::numeric_limits<double>::infinity());
  CHECK(balance_ratio(even, even) == 1);
}

TEST_CASE("a placement's time counts its own loads, its copies and its second residents") {
  Placement p({.experts = 3, .devices = 3, .residents = 2, .shadows = 1});
  ExpertCounts loads(3, 3);
  loads.at(0, 0) = 2, loads.at(1, 0) = 2, loads.at(2, 0) = 1, loads.at(1, 1) = 2;
  const auto time_s = [&] { return placement_s(TimeEquation::kBlocking, p, loads, kRates); };
  CHECK(time_s() == Approx(4 * 3 * 10 / 20.0 + 3 * 5 / 4.0));
  p.add_shadow(0, 1);  // device 1: 4 of its own, device 0: 3, of which one comes from device 2
  CHECK(time_s() == Approx(4 * 1 * 10 / 20.0 + 3 * 4 / 4.0 + 2 * 2 * 100 / (3 * 50.0)));
  p.clear_shadows();
  p.add_resident(0, 1);  // 2 (r - 1) / r = 1 expert's gradients
  CHECK(time_s() == Approx(4 * 1 * 10 / 20.0 + 3 * 4 / 4.0 + 100 / 50.0));
}

TEST_CASE("a move costs what the busiest device sends or receives, state included") {
  const Placement now({.experts = 4, .devices = 2, .residents = 3});
  Placement next = now;
  CHECK(move_s(now, next, kRates) == 0);
  next.swap_owners(0, 2);
  CHECK(move_s(now, next, kRates) == Approx(400 / 50.0));
  next.add_resident(1, 1);
  CHECK(move_s(now, next, kRates) == Approx(2 * 400 / 50.0));
}

TEST_CASE("a move breaks even after its time over the gain, and never without a gain") {
  CHECK(break_even_steps(8, 0.5) == 16);
  CHECK(break_even_steps(0, 0) == 0);
  CHECK(break_even_steps(8, 0) == std::numeric_limits<double>::infinity());
  CHECK(break_even_steps(0, -1) == std::numeric_limits<double>::infinity());
}

TEST_CASE("rates that nothing can be divided by are refused by name") {
  PlacementRates bad = kRates;
  bad.inputs_per_s = 0;
  CHECK_THROWS_WITH(check(bad, "prophet"),
                    Catch::Contains("prophet.inputs_per_s = 0, allowed: a number above 0"));
  bad = kRates;
  bad.expert_bytes = std::nan("");
  CHECK_THROWS_WITH(check(bad, "prophet"), Catch::Contains("prophet.expert_bytes = nan"));
  bad = kRates;
  bad.scatter_share = 1.5;
  CHECK_THROWS_WITH(check(bad, "prophet"),
                    Catch::Contains("prophet.scatter_share = 1.5: must be from 0 to 1"));
}

}  // namespace
}  // namespace moe
