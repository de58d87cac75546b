#include "engine/placement/expert_transfers.h"

#include <catch2/catch.hpp>
#include <map>
#include <utility>

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

ExpertSteps copies(const Placement& p, int64_t per_node = 1) {
  const ShadowRange all = {0, p.bounds().shadows};
  return copy_steps(p, {&all, 1}, per_node);
}

void add(const std::vector<ExpertPiece>& pieces, double expert_bytes, int64_t devices,
         std::vector<double>& matrix) {
  add_bytes(pieces, {&expert_bytes, 1}, {devices, 1}, devices, matrix);
}

TEST_CASE("after its steps every shadow has every part of its expert, each received once") {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Placement p = with_shadows(seed);
    const int64_t per_node = 1 + static_cast<int64_t>(seed % 3);
    std::map<Key, int> received;
    std::map<int64_t, int64_t> wanted;
    for (const Move& move : shadow_moves(p)) ++wanted[move.expert];
    for (const auto& pieces : copies(p, per_node)) {
      std::map<Key, int> now = received;
      for (const ExpertPiece& piece : pieces) {
        CHECK(piece.parts == wanted[piece.expert]);
        CHECK(p.at(piece.from, piece.from_slot) == piece.expert);
        CHECK(p.at(piece.to, piece.to_slot) == piece.expert);
        const bool has = piece.from == p.owner(piece.expert) ||
                         received.contains({piece.expert, piece.from, piece.part});
        CHECK(has);  // before this step
        ++now[{piece.expert, piece.to, piece.part}];
      }
      received = now;
    }
    size_t expected = 0;
    for (const auto& [expert, n] : wanted) expected += static_cast<size_t>(n * n);
    CHECK(received.size() == expected);
    for (const auto& [key, times] : received) CHECK(times == 1);
  }
}

TEST_CASE("a node receives an expert once, that of its owner not at all") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Placement p = with_shadows(seed);
    const int64_t per_node = 1 + static_cast<int64_t>(seed % 3);
    std::map<std::pair<int64_t, int64_t>, double> entered;  // expert, node
    for (const auto& pieces : copies(p, per_node)) {
      for (const ExpertPiece& piece : pieces) {
        if (piece.from / per_node == piece.to / per_node) continue;
        entered[{piece.expert, piece.to / per_node}] += 1.0 / static_cast<double>(piece.parts);
      }
    }
    for (const Move& move : shadow_moves(p)) {
      const bool owners = move.to / per_node == p.owner(move.expert) / per_node;
      const auto at = entered.find({move.expert, move.to / per_node});
      CHECK((at == entered.end()) == owners);
      if (!owners) CHECK(at->second == Approx(1));
    }
  }
}

TEST_CASE(
    "an owner sends an expert once however many copies it gets, and a copy is received once") {
  Placement p({.experts = 4, .devices = 4, .residents = 1, .shadows = 1});
  for (const int64_t d : {1, 2, 3}) p.add_shadow(0, d);
  const ExpertSteps steps = copies(p);
  REQUIRE(steps.size() == 3);
  std::vector<double> matrix(16);
  add(steps[0], 12, 4, matrix);
  CHECK(matrix == std::vector<double>{0, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  add(steps[1], 12, 4, matrix);
  for (size_t d = 1; d < 4; ++d) {
    CHECK(matrix[d] + matrix[4 + d] + matrix[8 + d] + matrix[12 + d] == 12);
  }
  CHECK(steps[2].empty());
}

TEST_CASE("devices of a node share what enters it") {
  Placement p({.experts = 8, .devices = 8, .residents = 1, .shadows = 1});
  for (int64_t d = 1; d < 8; ++d) p.add_shadow(0, d);
  const ExpertSteps steps = copies(p, 4);
  std::vector<double> scattered(64), between(64), inside(64);
  add(steps[0], 7, 8, scattered);
  add(steps[1], 7, 8, between);
  add(steps[2], 7, 8, inside);
  for (size_t d = 1; d < 8; ++d) CHECK(scattered[d] == 1);
  // The owner's node has three of seven parts: its owner gives the others, over its own links. The
  // other node's three missing parts come from those who have them.
  double from_owner = 0, across = 0;
  for (size_t d = 1; d < 4; ++d) {
    from_owner += between[d];
    for (size_t to = 4; to < 8; ++to) across += between[d * 8 + to];
  }
  CHECK(from_owner == 4);
  CHECK(across == 3);
  for (size_t d = 1; d < 8; ++d) {
    double received = 0;
    for (size_t from = 0; from < 8; ++from) {
      received += scattered[from * 8 + d] + between[from * 8 + d] + inside[from * 8 + d];
    }
    CHECK(received == 7);
  }
}

TEST_CASE("gradients of shadows go the way of the copies, backwards") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Placement p = with_shadows(seed);
    const int64_t per_node = 1 + static_cast<int64_t>(seed % 3);
    const ShadowRange some = {0, 2};
    const ExpertSteps there = copy_steps(p, {&some, 1}, per_node);
    const ExpertSteps back = return_steps(p, {&some, 1}, per_node);
    REQUIRE(back.size() == there.size());
    for (size_t s = 0; s < there.size(); ++s) {
      const std::vector<ExpertPiece>& way = there[there.size() - 1 - s];
      REQUIRE(back[s].size() == way.size());
      for (size_t i = 0; i < way.size(); ++i) {
        CHECK(back[s][i].from == way[i].to);
        CHECK(back[s][i].to_slot == way[i].from_slot);
        CHECK(back[s][i].part == way[i].part);
      }
    }
  }
}

TEST_CASE("shares of slots move together, each as if it moved alone") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Placement p = with_shadows(seed);
    const std::vector<ShadowRange> ranges = {{0, 1, {5, 16}}, {1, p.bounds().shadows}};
    if (p.bounds().shadows < 2) continue;
    const ExpertSteps together = copy_steps(p, ranges, 2);
    for (int64_t r = 0; r < 2; ++r) {
      const ExpertSteps alone = copy_steps(p, {&ranges[static_cast<size_t>(r)], 1}, 2);
      for (size_t s = 0; s < alone.size(); ++s) {
        std::vector<ExpertPiece> mine;
        for (ExpertPiece piece : together[s]) {
          if (std::exchange(piece.range, 0) == r) mine.push_back(piece);
        }
        CHECK(mine == alone[s]);
      }
    }
  }
  const ExpertShare head = {0, 5}, tail = {5, 16};
  for (const int64_t rows : {16, 17, 30, 1024}) {
    CHECK(head.rows_before(rows) == 0);
    CHECK(tail.rows_before(rows) == head.rows(rows));
    CHECK(head.rows(rows) + tail.rows(rows) == rows);
  }
}

TEST_CASE("residents sum a part each and give it to the others") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Placement p = with_shadows(seed);
    const ExpertSteps steps = sum_steps(p);
    std::map<Key, int> summed, given;
    for (const ExpertPiece& piece : steps[0]) {
      CHECK(p.is_resident(piece.expert, piece.from));
      ++summed[{piece.expert, piece.to, piece.part}];
    }
    for (const ExpertPiece& piece : steps[1]) {
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
  const ShadowRange all = {0, 1};
  for (const ExpertSteps& steps : {copies(p), return_steps(p, {&all, 1}), sum_steps(p)}) {
    for (const auto& pieces : steps) CHECK(pieces.empty());
  }
}

}  // namespace
}  // namespace moe
