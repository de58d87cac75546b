#include "engine/network/fair_share.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/base/rng.h"

namespace moe {
namespace {

struct FlowGroup {
  uint32_t out, in;
  double count, weight;
  double rate = 0;  // of each flow
};

struct Case {
  std::vector<double> capacity;
  std::vector<FlowGroup> groups;

  void share() {
    FairShare sharing(capacity.size());
    std::vector<uint32_t> numbers, moved;
    for (uint32_t l = 0; l < capacity.size(); ++l) sharing.set_capacity(l, capacity[l]);
    for (const FlowGroup& g : groups)
      numbers.push_back(sharing.add(g.out, g.in, g.weight * g.count));
    sharing.settle(moved);
    CHECK(moved.size() == groups.size());
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].rate = groups[i].weight * sharing.level(sharing.holder(numbers[i]));
    }
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
    FlowGroup group{};
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

TEST_CASE("after any changes the shares are those of the same flows shared for the first time") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const auto half = static_cast<uint32_t>(1 + rng.below(8));
    FairShare sharing(2 * half);
    Case now;
    now.capacity.resize(2 * half);
    std::vector<uint32_t> numbers, moved;
    for (int64_t round = 0; round < 60; ++round) {
      for (int64_t change = rng.below(4); change >= 0; --change) {
        const int64_t what = round == 0 ? 0 : rng.below(4);
        const auto at = static_cast<size_t>(rng.below(std::max<int64_t>(1, std::ssize(numbers))));
        if (what == 0 || numbers.empty()) {
          // Equal weights and capacities now and then, so that links fill at the same time.
          const double weight = rng.below(2) == 0 ? 1 : 0.25 + rng.uniform();
          now.groups.push_back({static_cast<uint32_t>(rng.below(half)),
                                static_cast<uint32_t>(half + rng.below(half)), 1, weight});
          numbers.push_back(
              sharing.add(now.groups.back().out, now.groups.back().in, now.groups.back().weight));
        } else if (what == 1) {
          sharing.remove(numbers[at]);
          numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(at));
          now.groups.erase(now.groups.begin() + static_cast<std::ptrdiff_t>(at));
        } else if (what == 2) {
          now.groups[at].weight *= 0.5 + rng.uniform();
          sharing.set_share(numbers[at], now.groups[at].weight);
        }
      }
      for (uint32_t l = 0; l < 2 * half; ++l) {
        if (round == 0 || rng.below(20) == 0) {
          now.capacity[l] = rng.below(2) == 0 ? 10 : 10 * rng.uniform();
        }
        sharing.set_capacity(l, now.capacity[l]);
      }
      sharing.settle(moved);
      now.share();
      for (size_t i = 0; i < numbers.size(); ++i) {
        INFO("seed " << seed << ", round " << round << ", flows " << i);
        const FlowGroup& group = now.groups[i];
        const double rate = group.weight * sharing.level(sharing.holder(numbers[i]));
        REQUIRE(rate == Approx(group.rate).epsilon(1e-9).margin(1e-9));
      }
      for (uint32_t l = 0; l < 2 * half; ++l) {
        REQUIRE(sharing.used(l) == Approx(now.load(l)).epsilon(1e-9).margin(1e-9));
      }
    }
  }
}

}  // namespace
}  // namespace moe
