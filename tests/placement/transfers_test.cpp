#include "engine/placement/transfers.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "engine/base/rng.h"

namespace moe {
namespace {

Placement with_shadows(uint64_t seed) {
  Rng rng(seed);
  const int64_t devices = 2 + rng.below(4), experts = devices * (1 + rng.below(2));
  Placement p({.experts = experts,
               .devices = devices,
               .residents = experts / devices + 1,
               .shadows = std::min<int64_t>(experts, 3)});
  for (int i = 0; i < 30; ++i) {
    const int64_t e = rng.below(experts), d = rng.below(devices);
    if (p.holds(d, e)) continue;
    if (rng.below(3) == 0 && p.free_residents(d) > 0) {
      p.add_resident(e, d);
    } else if (p.free_shadows(d) > 0) {
      p.add_shadow(e, d);
    }
  }
  return p;
}

using Key = std::tuple<int64_t, int64_t, int64_t>;  // expert, device, part

TEST_CASE("after the two steps every shadow has every part of its expert, each once") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Placement p = with_shadows(seed);
    const ExpertSteps steps = copy_steps(p, 0, p.bounds().shadows);
    std::map<Key, int> received;
    std::set<Key> after_first;
    for (const ExpertPiece& piece : steps.first) {
      CHECK(piece.from == p.owner(piece.expert));
      CHECK(p.at(piece.to, piece.to_slot) == piece.expert);
      ++received[{piece.expert, piece.to, piece.part}];
      after_first.insert({piece.expert, piece.to, piece.part});
    }
    for (const ExpertPiece& piece : steps.second) {
      CHECK(after_first.contains({piece.expert, piece.from, piece.part}));
      ++received[{piece.expert, piece.to, piece.part}];
    }
    std::map<int64_t, int64_t> copies;
    for (const Move& move : shadow_moves(p)) ++copies[move.expert];
    size_t expected = 0;
    for (const auto& [expert, n] : copies) expected += static_cast<size_t>(n * n);
    CHECK(received.size() == expected);
    for (const auto& [key, times] : received) CHECK(times == 1);
  }
}

TEST_CASE(
    "an owner sends an expert once however many copies it gets, and a copy is received once") {
  Placement p({.experts = 4, .devices = 4, .residents = 1, .shadows = 1});
  for (const int64_t d : {1, 2, 3}) p.add_shadow(0, d);
  const ExpertSteps steps = copy_steps(p, 0, 1);
  std::vector<double> matrix(16);
  add_bytes(steps.first, 12, 4, matrix);
  CHECK(matrix == std::vector<double>{0, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  add_bytes(steps.second, 12, 4, matrix);
  for (size_t d = 1; d < 4; ++d) {
    CHECK(matrix[d] + matrix[4 + d] + matrix[8 + d] + matrix[12 + d] == 12);
  }
}

TEST_CASE("gradients of shadows go the way of the copies, backwards") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Placement p = with_shadows(seed);
    const ExpertSteps there = copy_steps(p, 0, 2), back = return_steps(p, 0, 2);
    REQUIRE(back.first.size() == there.second.size());
    REQUIRE(back.second.size() == there.first.size());
    for (size_t i = 0; i < back.second.size(); ++i) {
      CHECK(back.second[i].from == there.first[i].to);
      CHECK(back.second[i].to == p.owner(back.second[i].expert));
    }
  }
}

TEST_CASE("residents sum a part each and give it to the others") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Placement p = with_shadows(seed);
    const ExpertSteps steps = sum_steps(p);
    std::map<Key, int> summed, given;
    for (const ExpertPiece& piece : steps.first) {
      CHECK(p.is_resident(piece.expert, piece.from));
      ++summed[{piece.expert, piece.to, piece.part}];
    }
    for (const ExpertPiece& piece : steps.second) {
      CHECK(summed.contains({piece.expert, piece.from, piece.part}));
      ++given[{piece.expert, piece.to, piece.part}];
    }
    for (const auto& [key, times] : given) CHECK(times == 1);
    for (int64_t e = 0; e < p.bounds().experts; ++e) {
      int64_t residents = 0;
      for (const int64_t d : p.holders(e)) residents += p.is_resident(e, d) ? 1 : 0;
      for (const auto& [key, times] : summed) {
        if (std::get<0>(key) == e) CHECK(times == residents - 1);
      }
    }
  }
}

TEST_CASE("where only owners hold experts nothing moves") {
  const Placement p({.experts = 4, .devices = 2, .residents = 2, .shadows = 1});
  CHECK(copy_steps(p, 0, 1).empty());
  CHECK(return_steps(p, 0, 1).empty());
  CHECK(sum_steps(p).empty());
}

}  // namespace
}  // namespace moe
