#include "engine/network/fair_share.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/base/rng.h"

namespace moe {
namespace {

struct Case {
  std::vector<double> capacity;
  std::vector<FlowGroup> groups;

  void share(double efficiency = 1) {
    FairShare sharing(efficiency);
    sharing.set_groups(groups, capacity.size());
    sharing.fill(groups, capacity.data());
  }
  double load(uint32_t link) const {
    double sum = 0;
    for (const FlowGroup& g : groups) {
      if (g.out == link || g.in == link) sum += g.rate * g.count;
    }
    return sum;
  }
};

Case random_case(uint64_t seed) {
  Rng rng(seed);
  Case c;
  const auto half = static_cast<uint32_t>(1 + rng.below(5));
  for (uint32_t l = 0; l < 2 * half; ++l) c.capacity.push_back(1 + 9 * rng.uniform());
  const int64_t num_groups = 1 + rng.below(12);
  for (int64_t i = 0; i < num_groups; ++i) {
    FlowGroup group;
    group.out = static_cast<uint32_t>(rng.below(half));
    group.in = static_cast<uint32_t>(half + rng.below(half));
    group.count = static_cast<double>(1 + rng.below(4));
    group.weight = 0.25 + rng.uniform();
    c.groups.push_back(group);
  }
  return c;
}

/// Some link of the group is full, and no flow on it has more by weight.
bool has_bottleneck(const Case& c, const FlowGroup& group) {
  for (const uint32_t l : {group.out, group.in}) {
    if (c.load(l) < c.capacity[l] * (1 - 1e-9)) continue;
    const bool largest = std::all_of(c.groups.begin(), c.groups.end(), [&](const FlowGroup& g) {
      const bool on_link = g.out == l || g.in == l;
      return !on_link || g.rate / g.weight <= group.rate / group.weight * (1 + 1e-9);
    });
    if (largest) return true;
  }
  return false;
}

TEST_CASE("a flow can get more only at the cost of one that has no more than it") {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Case c = random_case(seed);
    c.share();
    INFO("seed " << seed);
    for (uint32_t l = 0; l < c.capacity.size(); ++l) {
      REQUIRE(c.load(l) <= c.capacity[l] * (1 + 1e-9));
    }
    for (const FlowGroup& group : c.groups) {
      REQUIRE(group.rate > 0);
      REQUIRE(has_bottleneck(c, group));
    }
  }
}

TEST_CASE("small steps of every rate in proportion to its weight come to the same shares") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Case c = random_case(seed), slow = c;
    c.share();
    constexpr double kStep = 1e-4;
    std::vector<char> full(c.capacity.size());
    for (bool moved = true; moved;) {
      moved = false;
      for (FlowGroup& g : slow.groups) {
        if (full[g.out] || full[g.in]) continue;
        g.rate += kStep * g.weight;
        moved = true;
      }
      for (uint32_t l = 0; l < full.size(); ++l) full[l] = slow.load(l) >= c.capacity[l];
    }
    for (size_t i = 0; i < c.groups.size(); ++i) {
      INFO("seed " << seed << ", group " << i);
      CHECK(slow.groups[i].rate == Approx(c.groups[i].rate).epsilon(0.01));
    }
  }
}

TEST_CASE("alike flows get the same as one group or as many") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Case merged = random_case(seed), split;
    split.capacity = merged.capacity;
    for (const FlowGroup& g : merged.groups) {
      split.groups.insert(split.groups.end(), static_cast<size_t>(g.count), g);
    }
    for (FlowGroup& g : split.groups) g.count = 1;
    merged.share();
    split.share();
    size_t next = 0;
    for (const FlowGroup& g : merged.groups) {
      for (double k = 0; k < g.count; ++k) {
        REQUIRE(split.groups[next++].rate == Approx(g.rate).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("a lower level gets what a higher one leaves, and takes nothing from it") {
  // Two links out, two in; the high flow is held to 3 by its link in.
  Case c{{10, 10, 3, 20}, {{0, 2, 1, 1, 1, 0}, {0, 3, 2, 1, 0, 1}, {1, 3, 1, 1, 0, 1}}};
  c.share();
  CHECK(c.groups[0].rate == Approx(3));
  CHECK(c.groups[1].rate == Approx(3.5));
  CHECK(c.groups[2].rate == Approx(10));
}

TEST_CASE("a link that two owners use keeps the efficiency's part of its rate") {
  Case c{{10, 10, 10, 10}, {{0, 2, 1, 1, 0, 0}, {0, 3, 1, 1, 0, 1}, {1, 3, 1, 1, 0, 1}}};
  c.share(0.8);
  CHECK(c.groups[0].rate == Approx(4));
  CHECK(c.groups[1].rate == Approx(4));
  CHECK(c.groups[2].rate == Approx(6));  // its link in has flows of one owner only
  c.groups[2].in = 2;
  c.share(0.8);
  CHECK(c.groups[2].rate == Approx(4));  // and now it shares a link of 8
}

}  // namespace
}  // namespace moe
